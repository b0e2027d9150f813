"""The compose file, the image and their settings hold what docs/operating.md promises."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gristmilld.settings import Flags, load

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
EXTRA_DRAIN_S = 8
"""The supervisor waits this much longer than `drain_s` before it kills."""


def seconds(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([sm])", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_hardened(name: str) -> None:
    """No root, no capability, nothing to write to but volumes and memory, and bounds for memory and logs."""
    service = SERVICES[name]
    uid = service["user"].split(":")[0]
    assert uid.isdecimal()
    assert uid != "0"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service["mem_limit"]
    assert service["pids_limit"]
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_and_checked(name: str) -> None:
    """An exact version or our own image; a health check for all that serve."""
    service = SERVICES[name]
    tag = service["image"].rpartition(":")[2]
    assert service["image"] == "gristmill:local" or re.match(r"v?\d+\.\d+\.\d+(-alpine)?$", tag)
    assert service["healthcheck"].get("test") or name == "demo"


def test_no_port_is_open_to_the_network() -> None:
    """What is published is published on the loopback."""
    published = {port for service in SERVICES.values() for port in service.get("ports", [])}
    assert len(published) == 4
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_the_daemon_is_given_more_time_than_its_drain() -> None:
    """Docker kills only after requests in flight have had their time."""
    config = load(Flags(config=ROOT / "ops/gristmill.toml"), {"OPENAI_BASE_URL": "http://h"})
    assert seconds(SERVICES["daemon"]["stop_grace_period"]) > config.drain_s + EXTRA_DRAIN_S


def test_the_daemons_settings_fit_the_containers() -> None:
    """State in the tmpfs, metrics on the port that Prometheus asks and the health check looks at."""
    config = load(Flags(config=ROOT / "ops/gristmill.toml"), {"OPENAI_BASE_URL": "http://h"})
    assert any(mount.startswith(f"{config.state_dir}:") for mount in SERVICES["daemon"]["tmpfs"])
    assert SERVICES["daemon"]["healthcheck"]["test"][-1] == f"http://127.0.0.1:{config.metrics_port}/readyz"
    scrape = yaml.safe_load((ROOT / "ops/prometheus/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"][0]
    assert scrape["dns_sd_configs"][0]["port"] == config.metrics_port
    assert scrape["dns_sd_configs"][0]["names"] == ["daemon"]


def test_the_model_servers_of_profiles_are_scraped() -> None:
    """Each is asked at the port that it listens on, and ends after the daemon that calls it."""
    servers = {name for name, service in SERVICES.items() if service.get("profiles") and "healthcheck" in service}
    servers -= {"demo"}
    jobs = yaml.safe_load((ROOT / "ops/prometheus/prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    (scraped,) = [job["dns_sd_configs"][0] for job in jobs if job["job_name"] == "model-servers"]
    assert set(scraped["names"]) == servers == {"standin", "vllm"}
    for name in servers:
        command = SERVICES[name]["command"]
        words = command if isinstance(command, str) else " ".join(command).replace("=", " ")
        assert f"--port {scraped['port']}" in words
        assert SERVICES["daemon"]["depends_on"][name] == {"condition": "service_healthy", "required": False}


def test_the_store_loses_nothing_by_its_settings() -> None:
    """AOF, no eviction, and a container that holds more than the store's own limit."""
    words = SERVICES["store"]["command"][-1]
    assert "--appendonly yes" in words
    assert "--maxmemory-policy noeviction" in words
    assert "--maxmemory ${STORE_MEMORY:-2gb}" in words
    assert SERVICES["store"]["mem_limit"] == "${STORE_CONTAINER_MEMORY:-4g}"


def test_files_and_volumes_are_there() -> None:
    """Each folder or file that is mounted exists, each named volume is declared and used."""
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", [])]
    sources = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", mount).split(":")[0] for mount in mounts]
    assert [s for s in sources if s.startswith(".") and not (ROOT / s).exists()] == []
    assert {s for s in sources if not s.startswith(".")} == set(COMPOSE["volumes"])


def test_the_sample_names_every_variable() -> None:
    """.env.sample has what the compose file reads, and nothing else; its defaults are those of the compose file."""
    sample = (ROOT / ".env.sample").read_text(encoding="utf-8")
    offered = dict(re.findall(r"^(?:# )?([A-Z_]+)=(.*)$", sample, re.MULTILINE))
    read = dict(re.findall(r"(?<!\$)\$\{([A-Z_]+):-([^}]*)\}", TEXT))
    assert set(offered) == set(read)
    own_words = {"OPENAI_BASE_URL", "GRISTMILL_CONFIG"}
    assert {k: v for k, v in offered.items() if k not in own_words and v != read[k]} == {}


def test_no_key_gets_into_the_image() -> None:
    """The build sees what it is told to, so no .env, no keys.env, no input of anybody."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {rule[1:] for rule in rules if rule.startswith("!")}
    dockerfile = (ROOT / "ops/Dockerfile").read_text(encoding="utf-8")
    copied = {
        name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", dockerfile, re.MULTILINE) for name in line.split()
    }
    assert copied == allowed - {"ops"}
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").split()
    assert {".env", "keys.env"} <= set(ignored)


def test_the_image_runs_as_a_user() -> None:
    """The last stage has no root, asks for its health, and stops by the signal that drains."""
    last = (ROOT / "ops/Dockerfile").read_text(encoding="utf-8").rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", last, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", last, re.MULTILINE)
    assert not re.search(r"\b(gcc|build-essential|apt-get)\b", last)
