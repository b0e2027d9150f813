"""The endpoint to measure against: nginx with lua, which costs far less than any client.

It reads the whole body and answers with a fixed chat completion of about 2 KB. It counts the requests that it answered
and remembers when the first one was in. Below `/slow/v1`, a request that says `"delay_s": X` is answered after X
seconds. `cpu_s` tells what it used itself: near the wall time of a run, it would have been what was measured.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

MODULES = ("ndk_http_module.so", "ngx_http_lua_module.so")
MODULE_FOLDERS = ("/usr/lib/nginx/modules", "/usr/lib64/nginx/modules", "/usr/local/lib/nginx/modules")
ANSWER_CHARS = 1700

CONFIG = """\
daemon off;
pid {home}/pid;
error_log {home}/error.log warn;
worker_processes 1;
{user}
{modules}
events {{ worker_connections 8192; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  client_max_body_size 64m;
  client_body_buffer_size 4m;
  client_body_temp_path {home}/body;
  proxy_temp_path {home}/proxy;
  fastcgi_temp_path {home}/fastcgi;
  uwsgi_temp_path {home}/uwsgi;
  scgi_temp_path {home}/scgi;
  lua_shared_dict stats 1m;
  init_by_lua_block {{
    answer = [=[{answer}]=]
    function serve()
      local stats = ngx.shared.stats
      if stats:incr("requests", 1, 0) == 1 then
        ngx.update_time()
        stats:set("first_s", ngx.now())
      end
      ngx.header["Content-Type"] = "application/json"
      ngx.header["Content-Length"] = #answer
      ngx.print(answer)
    end
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = /v1/chat/completions {{ content_by_lua_block {{ ngx.req.read_body() serve() }} }}
    location = /slow/v1/chat/completions {{
      content_by_lua_block {{
        ngx.req.read_body()
        local delay = string.match(ngx.req.get_body_data() or "", '"delay_s": ?([0-9.]+)')
        if delay then ngx.sleep(tonumber(delay)) end
        serve()
      }}
    }}
    location ~ ^(/slow)?/v1/models$ {{
      default_type application/json;
      return 200 '{{"object":"list","data":[{{"id":"bench","object":"model","created":0,"owned_by":"bench"}}]}}';
    }}
    location = /stats {{
      content_by_lua_block {{
        local stats = ngx.shared.stats
        ngx.print('{{"requests":', stats:get("requests") or 0, ',"first_s":', stats:get("first_s") or "null",
          ',"pid":', ngx.worker.pid(), '}}')
      }}
    }}
    location = /reset {{ content_by_lua_block {{ ngx.shared.stats:flush_all() ngx.print("{{}}") }} }}
  }}
}}
"""


def completion() -> str:
    """A chat completion of about 2 KB, as a server would write it."""
    words = "The wheel turns as long as the river runs, and the stone takes what the hopper lets through. "
    content = (words * (ANSWER_CHARS // len(words) + 1))[:ANSWER_CHARS]
    message = {"role": "assistant", "content": content, "refusal": None, "tool_calls": []}
    return json.dumps({
        "id": "chatcmpl-bench", "object": "chat.completion", "created": 1, "model": "bench",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 512, "completion_tokens": 380, "total_tokens": 892},
    })  # fmt: skip


class Endpoint:
    """nginx on a free port of the loopback, with all its files in a folder that goes with it.

    Raises:
        LookupError: nginx or its lua module is not there; the message says how to get them.
    """

    def __init__(self) -> None:
        nginx = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
        folder = next((f for f in map(Path, MODULE_FOLDERS) if all((f / m).is_file() for m in MODULES)), None)
        if nginx is None or folder is None:
            raise LookupError("nginx with lua is not installed; on Debian: apt install nginx libnginx-mod-http-lua")
        self._nginx = nginx
        self._modules = "\n".join(f"load_module {folder / m};" for m in MODULES)
        self._home = Path(tempfile.mkdtemp(prefix="gm-bench-nginx-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self._port = s.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        config = self._home / "nginx.conf"
        user = "user root;" if os.geteuid() == 0 else ""  # else its worker could not write into our folder
        text = CONFIG.format(
            home=self._home, user=user, modules=self._modules, port=self._port, answer=completion()
        )  # fmt: skip
        config.write_text(text, encoding="utf-8")
        argv = [self._nginx, "-p", str(self._home), "-e", str(self._home / "error.log"), "-c", str(config)]
        self._process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self._home / "error.log").read_text(encoding="utf-8")[-500:]
                self.__exit__()
                raise LookupError(f"nginx did not start: {log}")
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            self.stats()
        except OSError:
            return False
        return True

    def stats(self) -> dict[str, Any]:
        """`requests` answered and `first_s`, the wall clock of the first, since the last reset; `pid` of the server."""
        with self._direct.open(f"{self.url}/stats", timeout=5) as answer:
            return json.load(answer)

    def cpu_s(self) -> float:
        """User and system seconds of the serving process so far; 0 where the system has no `/proc`."""
        path = Path(f"/proc/{self.stats()['pid']}/stat")
        if not path.exists():
            return 0.0
        after_name = path.read_text(encoding="utf-8").rpartition(") ")[2].split()
        user, system = after_name[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def reset(self) -> None:
        self._direct.open(f"{self.url}/reset", timeout=5).close()
