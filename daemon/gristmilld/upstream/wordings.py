"""PURE: what servers say in their own words, lower case, and what it means.

Statuses are too coarse: one server answers 400 for a prompt that is too long, the next 413, 422 or 500, each in its own
words. A wording belongs here when a server has been seen to say it; tests/unit/test_upstream_failures.py holds the
whole sentences.
"""

from __future__ import annotations

import re

CONTEXT = (
    "maximum context length",  # OpenAI, vLLM, SGLang, Mistral, DeepSeek, OpenRouter
    "context_length_exceeded",
    "context length exceeded",
    "context_window_exceeded",
    "exceeds the context window",  # OpenAI, Responses API
    "context window exceeds limit",  # MiniMax
    "exceed the configured limit",  # OpenAI, long-context models
    "longer than the maximum model length",  # vLLM
    "max_model_len",  # vLLM, pictures
    "longer than the model's context length",  # SGLang, Together
    "maximum allowed length",  # SGLang
    "maximum allowed input length",
    "exceeds the available context size",  # llama.cpp
    "exceed_context_size",
    "context size has been exceeded",  # llama.cpp, while generating
    "`inputs` must have less than",  # TGI
    "`inputs` tokens + `max_new_tokens`",
    "exceeds the context length",  # Ollama
    "greater than the context length",  # LM Studio
    "prompt is too long",  # Anthropic
    "prompt too long",
    "input is too long for requested model",  # Bedrock
    "exceeds the maximum number of tokens",  # Gemini
    "maximum prompt length",  # xAI
    "reduce the length of the messages",  # Groq
    "exceeded model token limit",  # Moonshot
    "range of input length should be",  # DashScope
)

CONTENT_FILTER = (
    "content_filter",
    "content_policy_violation",
    "content management policy",  # Azure
    "content_safety",
    "data_inspection_failed",  # DashScope
    "responsibleaipolicyviolation",
    "requires moderation",  # OpenRouter, with 403
    "your input was flagged",
)

NO_BALANCE = (
    "insufficient_quota",
    "insufficient_balance",
    "insufficient balance",
    "insufficient credits",
    "exceeded your current quota",  # OpenAI
    "exceeded_current_quota",  # Moonshot
    "billing_hard_limit",
    "billing hard limit",
    "billing_not_active",
    "credit balance is too low",  # Anthropic
    "credits have been exhausted",
)

UNKNOWN_MODEL = (
    "model_not_found",
    "model not found",
    "unknown model",
    "no such model",
    "invalid model",
    "is not a valid model",
    "not_found_error: model",
)
_MODEL_MISSING = re.compile(r"\bmodels?\b[^.\n]{0,300}?\b(does not exist|not found|not exist|is not available)")

NO_IMAGES = (
    "is not a multimodal model",  # vLLM
    "at most 0 image",  # vLLM, a text-only server
    "image input is not supported",  # llama.cpp without its projector
    "does not support image",
    "support image input",  # OpenRouter
    "unsupported content type 'image_url'",
    "unknown variant `image_url`",
)

TOO_LARGE_FOR_RATE = ("request too large for", "request is too large for")
"""With 429: the request alone is above the rate limit, so waiting cannot help."""


def says(text: str, wordings: tuple[str, ...]) -> bool:
    """Whether `text`, lower case, holds one of `wordings`."""
    return any(w in text for w in wordings)


def says_unknown_model(text: str) -> bool:
    """Whether `text`, lower case, says that the server has no such model."""
    return says(text, UNKNOWN_MODEL) or _MODEL_MISSING.search(text) is not None


_LIMIT = re.compile(
    r"(?:maximum context length (?:is|of)|available context size \(|context length \(|maximum model length of|"
    r"maximum prompt length is|must have less than|maximum allowed (?:input )?length (?:of |\())\s*(\d{2,9})\b"
)


def context_limit(text: str) -> int | None:
    """The context size that `text`, lower case, names right after a known wording, in tokens."""
    found = _LIMIT.search(text)
    return int(found[1]) if found else None
