"""The failure table: what servers send, in their own words, and what it means."""

from __future__ import annotations

import json

import pytest
from multidict import CIMultiDict

from gristmill.contract.failure import Failure, FailureClass
from gristmilld.upstream.failures import error_in_ok, looks_like_configuration, refusal
from gristmilld.upstream.outcome import FailedCall, Shape
from gristmilld.upstream.sanitise import safe_code
from gristmilld.upstream.shapes import read_answer

C = FailureClass
CHAT = "/chat/completions"
SENTINEL = "zebra-4711-sentinel"


def error(message: str, **more: object) -> bytes:
    return json.dumps({"error": {"message": message, **more}}).encode()


def classify(status: int, body: bytes, path: str = CHAT, **headers: str) -> FailedCall:
    """As the client judges a response."""
    named = CIMultiDict({k.replace("_", "-"): v for k, v in headers.items()})
    if not 200 <= status < 300:
        return refusal(status, named, body)
    outcome = read_answer(path, body, wants_json=False)
    assert isinstance(outcome, FailedCall)
    return error_in_ok(outcome, status, named, body)


TOO_LONG = [
    # vLLM
    (400, error("This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in "
                "the messages, 10000 in the completion). Please reduce the length of the messages or completion.")),
    (400, error("The decoder prompt (length 70000) is longer than the maximum model length of 65536. Make sure that "
                "`max_model_len` is no smaller than the number of text tokens.")),
    (400, error("The prompt (total length 25938) is too long to fit into the model (context length 4096). Make sure "
                "that `max_model_len` is no smaller than the number of text tokens plus multimodal tokens.")),
    (400, error("'max_tokens' or 'max_completion_tokens' is too large: 5000. This model's maximum context length is "
                "4096 tokens and your request has 100 input tokens (5000 > 4096 - 100).")),
    # SGLang
    (400, (b'{"object":"error","message":"Requested token count exceeds the model\'s maximum context length of 8192 '
          b'tokens. You requested a total of 9000 tokens","type":"BadRequestError","code":400}')),
    (400, error("The input (131123 tokens) is longer than the model's context length (131072 tokens).")),
    (400, error("Input length (9001 tokens) exceeds the maximum allowed length (8185 tokens).")),
    # llama.cpp
    (400, (b'{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it",'
          b'"type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":4096}}')),
    (500, error("Context size has been exceeded.", code=500, type="server_error")),
    # OpenAI
    (400, error("This model's maximum context length is 4097 tokens. However, you requested 4203 tokens",
                type="invalid_request_error", code="context_length_exceeded")),
    (400, error("Your input exceeds the context window of this model. Please adjust your input and try again.")),
    (400, error("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 509178 tokens.")),
    # TGI
    (422, (b'{"error":"Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",'
          b'"error_type":"validation"}')),
    (422, b'{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000"}'),
    # hosted
    (400, error("prompt is too long: 210000 tokens > 200000 maximum", type="invalid_request_error")),
    (400, error("This model's maximum prompt length is 131072 but the request contains 537812 tokens")),
    (400, error("The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).")),
    (400, b'{"detail":"Prompt contains 40000 tokens, too large for model with 32768 maximum context length"}'),
    # a proxy
    (413, b"<html>\r\n<head><title>413 Request Entity Too Large</title></head></html>"),
    (413, error("This model's maximum context length is 4096 tokens.")),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body"), TOO_LONG)
def test_every_wording_of_too_long_is_one_class(status, body):
    """A prompt that does not fit is `context_length`, whatever the server's words and status, and final."""
    failure = classify(status, body)
    assert failure.cls is C.CONTEXT_LENGTH
    assert failure.status_code == status


def test_the_limit_that_the_server_names_is_told():
    """The context size stands in the message; the rest of the server's words does not."""
    assert "16384 tokens" in classify(*TOO_LONG[0]).message
    assert "112946" not in classify(*TOO_LONG[0]).message


@pytest.mark.parametrize(
    ("status", "cls", "shape"),
    [
        (301, C.CONFIG_ERROR, Shape.REDIRECT),
        (307, C.CONFIG_ERROR, Shape.REDIRECT),
        (400, C.BAD_REQUEST, None),
        (401, C.CONFIG_ERROR, Shape.AUTH),
        (402, C.CONFIG_ERROR, Shape.BALANCE),
        (403, C.CONFIG_ERROR, Shape.AUTH),
        (404, C.BAD_REQUEST, Shape.WRONG_URL),
        (405, C.BAD_REQUEST, Shape.WRONG_METHOD),
        (407, C.CONFIG_ERROR, Shape.PROXY),
        (408, C.TRANSIENT, None),
        (409, C.TRANSIENT, None),
        (413, C.BAD_REQUEST, None),
        (415, C.BAD_REQUEST, None),
        (422, C.BAD_REQUEST, None),
        (425, C.TRANSIENT, None),
        (429, C.RATE_LIMITED, None),
        (499, C.TRANSIENT, None),
        (500, C.TRANSIENT, None),
        (502, C.TRANSIENT, None),
        (503, C.OVERLOADED, None),
        (504, C.TRANSIENT, None),
        (524, C.TRANSIENT, None),
        (529, C.OVERLOADED, None),
    ],
)
def test_a_status_in_plain_words_has_its_class(status, cls, shape):
    """Without words that we know, the status decides."""
    failure = classify(status, error("something"))
    assert (failure.cls, failure.shape) == (cls, shape)


@pytest.mark.parametrize(
    ("status", "body", "cls", "shape"),
    [
        (404, error("The model `nope` does not exist.", type="NotFoundError", code=404), C.BAD_REQUEST,
         Shape.UNKNOWN_MODEL),
        (404, error("x", code="model_not_found"), C.BAD_REQUEST, Shape.UNKNOWN_MODEL),
        (404, b"{\"error\":\"model 'nope' not found\"}", C.BAD_REQUEST, Shape.UNKNOWN_MODEL),
        (404, b'{"detail":"Not Found"}', C.BAD_REQUEST, Shape.WRONG_URL),
        (404, b"<html>404</html>", C.BAD_REQUEST, Shape.WRONG_URL),
        (429, error("You exceeded your current quota", code="insufficient_quota"), C.CONFIG_ERROR, Shape.BALANCE),
        (429, error("Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 40000"),
         C.BAD_REQUEST, None),
        (400, error("Insufficient Balance"), C.CONFIG_ERROR, Shape.BALANCE),
        (400, error("At most 0 image(s) may be provided in one prompt."), C.BAD_REQUEST, Shape.NO_IMAGES),
        (400, error("Qwen3-8B is not a multimodal model"), C.BAD_REQUEST, Shape.NO_IMAGES),
        (500, error("image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"),
         C.TRANSIENT, None),
        (400, error("The response was filtered due to Azure OpenAI's content management policy",
                    code="content_filter"), C.CONTENT_FILTER, None),
        (403, error("openai/x requires moderation on OpenRouter. Your input was flagged"), C.CONTENT_FILTER, None),
        (503, error("Loading model", type="unavailable_error", code=503), C.OVERLOADED, None),
    ],
)  # fmt: skip
def test_words_refine_the_status(status, body, cls, shape):
    """Servers use one status for several things; their codes and words tell them apart."""
    failure = classify(status, body)
    assert (failure.cls, failure.shape) == (cls, shape)


@pytest.mark.parametrize(
    ("body", "cls", "shape"),
    [
        (b"", C.TRANSIENT, None),
        (b'{"choices": [{"mess', C.TRANSIENT, None),
        (error("boom"), C.TRANSIENT, None),
        (b'{"error": "boom"}', C.TRANSIENT, None),
        (error("rate", code=429), C.RATE_LIMITED, None),
        (error("This model's maximum context length is 4096 tokens.", code=400), C.CONTEXT_LENGTH, Shape.CONTEXT),
        (b'{"choices": []}', C.TRANSIENT, Shape.NOT_AN_ANSWER),
        (b'{"status": "ok"}', C.TRANSIENT, Shape.NOT_AN_ANSWER),
        (b"[1]", C.TRANSIENT, Shape.NOT_AN_ANSWER),
        (b"null", C.TRANSIENT, Shape.NOT_AN_ANSWER),
        (b"<html></html>", C.TRANSIENT, Shape.NOT_AN_ANSWER),
        (b"data: {}\n\n", C.TRANSIENT, Shape.STREAM),
    ],
)
def test_200_is_not_enough(body, cls, shape):
    """A 200 whose body is an error, empty, broken or of another kind is a failure; an inner status counts."""
    failure = classify(200, body)
    assert (failure.cls, failure.shape, failure.status_code) == (cls, shape, 200)


@pytest.mark.parametrize(
    ("body", "headers", "seconds"),
    [
        (b"", {"Retry_After": "7"}, 7.0),
        (b"", {"Retry_After": "0.5"}, 0.5),
        (b"", {"Retry_After_Ms": "1500"}, 1.5),
        (b"", {"Retry_After": "Mon, 30 Nov 2026 12:00:20 GMT", "Date": "Mon, 30 Nov 2026 12:00:00 GMT"}, 20.0),
        (b"", {"Retry_After": "Mon, 30 Nov 2026 12:00:00 GMT", "Date": "Mon, 30 Nov 2026 12:00:20 GMT"}, None),
        (b"", {"Retry_After": "soon"}, None),
        (b"", {"Retry_After": "nan"}, None),
        (b"", {"Retry_After": "-3"}, None),
        (b"", {"Retry_After": "999999999"}, 86_400.0),
        (error("Rate limit reached. Please try again in 20s. Visit ..."), {}, 20.0),
        (error("Please try again in 1m20.5s."), {}, 80.5),
        (error("try again in 250ms"), {}, 0.25),
        (error("Please retry after 12 seconds."), {}, 12.0),
        (error("x", retry_after=30), {}, 30.0),
        (b'{"retryable":true,"retry_after":120,"error_code":524}', {}, 120.0),
        (b'[{"error":{"code":429,"details":[{"retryDelay":"34s"}]}}]', {}, 34.0),
        (error("x", retry_after=30), {"Retry_After": "5"}, 5.0),
        (error("slow down"), {}, None),
    ],
)
def test_the_wait_is_found_wherever_it_stands(body, headers, seconds):
    """Retry-After comes as seconds, milliseconds or a date in a header, or as a field or words in the body."""
    assert classify(429, body, **headers).retry_after_s == seconds


def test_a_524_of_a_proxy_carries_its_wait():
    """Cloudflare's 524 names its wait in the body alone."""
    failure = classify(524, b'{"title":"Error 524","retryable":true,"retry_after":120}')
    assert (failure.cls, failure.retry_after_s) == (C.TRANSIENT, 120.0)


@pytest.mark.parametrize("status", [200, 307, 400, 401, 402, 403, 404, 405, 413, 422, 429, 500, 503, 524])
@pytest.mark.parametrize(
    "make",
    [
        lambda s: error(f"invalid value {s}", type="BadRequestError", code=400),
        lambda s: error("x", type=s, code=s, param=s),
        lambda s: json.dumps({"error": s}).encode(),
        lambda s: json.dumps({"detail": [{"loc": ["body"], "input": s, "msg": s}]}).encode(),
        lambda s: f"<html>{s}</html>".encode(),
        lambda s: s.encode(),
        lambda s: error(f"This model's maximum context length is 4096 tokens. {s}"),
        lambda s: error(f"maximum context length is {s}"),
        lambda s: error(f"The model `{s}` does not exist."),
    ],
)
def test_no_echo_of_the_prompt_reaches_a_message(status, make):
    """Whatever place of an error a server echoes the prompt in, no message, advice or repr holds it."""
    failure = classify(status, make(SENTINEL))
    seen = f"{failure.message} {failure!r} {failure} {looks_like_configuration(failure)}"
    assert "zebra" not in seen
    assert "4711" not in seen


def test_codes_of_known_words_are_told():
    """An error's code helps and is made of words that we chose; anything else might be the prompt."""
    assert "(context_length_exceeded)" in classify(400, error("x", code="context_length_exceeded")).message
    assert "(BadRequestError)" in classify(400, error("x", type="BadRequestError")).message
    assert safe_code("invalid_api_key") == "invalid_api_key"
    assert safe_code("rate_limit_exceeded") == "rate_limit_exceeded"
    assert safe_code("my_secret_prompt") is None
    assert safe_code("invalid request") is None
    assert safe_code("error_4711") is None
    assert safe_code("Ошибка") is None
    assert safe_code("error_Ошибка") is None
    assert safe_code(400) is None


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (404, error("The model `nope` does not exist."), "no such model"),
        (404, b'{"detail":"Not Found"}', "base URL"),
        (405, b"{}", "base URL"),
        (401, b"{}", "key"),
        (402, b"{}", "balance"),
        (308, b"", "redirects"),
        (400, error("x is not a multimodal model"), "takes no pictures"),
        (400, error("maximum context length is 4096"), "context size"),
        (200, b"<html>", "model server"),
    ],
)
def test_a_configuration_shape_has_advice(status, body, says):
    """What every request would meet alike is diagnosed in a sentence that says what to mend."""
    assert says in (looks_like_configuration(classify(status, body)) or "")


@pytest.mark.parametrize(
    "failure",
    [
        Failure(C.TRANSIENT, "x"),
        Failure(C.BAD_REQUEST, "x", status_code=400),
        FailedCall(C.TIMEOUT, "x"),
        FailedCall(C.CONTENT_FILTER, "x"),
    ],
)
def test_other_failures_are_no_configuration(failure):
    """A failure that need not be the setup's is not diagnosed as one."""
    assert looks_like_configuration(failure) is None
