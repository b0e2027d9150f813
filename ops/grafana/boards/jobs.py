"""Dashboard "Jobs": how far each is, how fast, until when, and what went wrong in it."""

from __future__ import annotations

from grafana_foundation_sdk.builders.dashboard import Dashboard

from boards.parts import (
    Panels,
    Query,
    bars,
    finished_per_s,
    frame,
    graph,
    names,
    number,
    of_job,
    requests_in,
    slope,
    states,
)

LEFT = requests_in("fresh|waiting|in_flight")
DONE = requests_in("ok|failed")
NAME = "{{job_id}}"


def board() -> Dashboard:
    text = "Every job of the store: progress, speed, end, failures, and whoever feeds and collects it."
    made = frame("jobs", "Jobs", text, variables=["model", "job"])
    for panel in (*_numbers(), *_progress(), *_trouble(), *_work(), *_list()):
        made.with_panel(panel)
    return made


def _numbers() -> Panels:
    yield number(
        "Unfinished jobs",
        "short",
        "Jobs that have not ended.",
        Query('max(sum by (instance) (gristmill_jobs{state=~"created|running|paused|cancelling"}))', "jobs"),
    )
    yield number(
        "Waiting for a person",
        "short",
        "Jobs that are paused until somebody mends what they stumbled over.",
        Query('sum(max by (job_id) (gristmill_job_state{state="paused", reason!="user"})) or vector(0)', "jobs"),
        steps=[(None, "green"), (1, "red")],
    )
    yield number(
        "Requests left",
        "short",
        "Requests of the chosen jobs that have no result yet.",
        Query(f"sum({LEFT})", "requests"),
    )
    yield number(
        "Finished per second",
        "reqps",
        "Requests of the chosen jobs that reach their end, good or bad.",
        Query(f"sum({finished_per_s()})", "requests"),
    )
    yield number(
        "Failed",
        "percentunit",
        "Share of the finished requests of the chosen jobs that failed.",
        Query(f"sum({requests_in('failed')}) / (sum({DONE}) > 0)", "share"),
        steps=[(None, "green"), (0.01, "orange"), (0.1, "red")],
    )
    yield number(
        "Oldest waiting",
        "s",
        "Age of the oldest unfinished job: its last requests have waited that long.",
        Query(f"max({of_job('age_seconds')})", "age"),
    )


def _progress() -> Panels:
    yield bars(
        "Progress",
        "percentunit",
        "Share of the requests fed so far that have a result; it can fall while a job is fed.",
        Query(f"{DONE} / {requests_in('.*')}", NAME),
        most=1,
    )
    yield graph("Finished per second", "reqps", "Requests that reach their end, by job.", Query(finished_per_s(), NAME))
    yield graph(
        "Time left",
        "s",
        "What is left of each job at its present speed; no line while nothing moves.",
        Query(f"{LEFT} / ({finished_per_s()} > 0)", NAME),
    )
    yield graph(
        "Requests by place",
        "short",
        "Where the requests of the chosen jobs are.",
        Query(requests_in(".*", by="place"), "{{place}}"),
        stacked=True,
    )


def _trouble() -> Panels:
    yield graph(
        "Failed requests by class",
        "short",
        "Requests that ended without an answer, by the class of their failure.",
        Query(f"sum by (class) ({of_job('failed_requests', by='job_id, class')})", "{{class}}"),
        stacked=True,
    )
    yield states(
        "Paused jobs",
        "Jobs that stand still, and who has to act.",
        Query(of_job("state", 'state="paused"', by="job_id, reason"), NAME + ": {{reason}}"),
    )
    yield states(
        "Stalled jobs",
        "Jobs of which nothing has finished for 2 minutes or longer, and what each waits for.",
        Query(of_job("stalled", by="job_id, reason"), NAME + ": {{reason}}"),
    )
    yield states(
        "Feeders and collectors",
        "A feeder that waits at its mark, one that was lost, a collector that is wanted.",
        Query(of_job("feeder_waiting"), NAME + ": feeder waits"),
        Query(of_job("feeder_lost"), NAME + ": feeder lost"),
        Query(of_job("collector_wanted"), NAME + ": collector wanted"),
    )
    yield graph(
        "Age of unfinished jobs",
        "s",
        "Time since each job that has not ended was made.",
        Query(of_job("age_seconds"), NAME),
    )


def _work() -> Panels:
    yield graph(
        "Tokens per second",
        "short",
        "Tokens of the results that come in, by job and direction.",
        Query(slope("tokens", by="job_id, direction"), NAME + " {{direction}}"),
    )
    yield graph(
        "Calls per finished request",
        "short",
        "1 when nothing has to be tried again.",
        Query(f"{of_job('attempts')} / ({DONE} > 0)", NAME),
    )


def _list() -> Panels:
    told = 'gristmill_job_info{job_id=~"$job", model=~"$model"}'
    yield names(
        "Jobs by name and model",
        "What each chosen job is called and the model that it was submitted for.",
        f"max by (job_id, name, model) ({told})",
        job_id="Job",
        name="Name",
        model="Model",
    )
