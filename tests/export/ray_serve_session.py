"""A Ray Serve session in a process of its own: `python ray_serve_session.py JOB.json` prints a JSON answer on its last line.

Ray's processes end with this one (the raylet watches its driver), which the test runs in a process group that it kills.
JOB: gpus, accelerators, port, stages: [{folder (of an export), wait_s, until (replicas to wait for by application;
null: until every application is RUNNING), requests: [{application, inputs}], at_once}]: sent over HTTP after the wait, so
many (8 where it is not said) at once.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def main(job: dict[str, Any]) -> list[dict[str, Any]]:
    import ray
    import yaml
    from ray import serve
    from ray.serve._private import api
    from ray.serve.schema import ServeDeploySchema

    http = {"host": "127.0.0.1", "port": job["port"]}
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as scratch:
        ray.init(
            num_cpus=16,  # logical: what runs is a handful of idle Python processes
            num_gpus=job["gpus"],
            resources={f"accelerator_type:{name}": job["gpus"] for name in job["accelerators"]},
            include_dashboard=False,
            object_store_memory=80 * 2**20,
            namespace="serve",
            _temp_dir=scratch,
            log_to_driver=False,
        )
        try:
            # The proxies of a running Serve keep the time-out that they started with: the first folder's.
            text = (Path(job["stages"][0]["folder"]) / "serve-config.yaml").read_text(encoding="utf-8")
            client = api.serve_start(http_options=yaml.safe_load(text)["http_options"] | http)
            answers = []
            for stage in job["stages"]:
                text = (Path(stage["folder"]) / "serve-config.yaml").read_text(encoding="utf-8")
                document = yaml.safe_load(text)
                document["http_options"] |= http
                config = ServeDeploySchema.model_validate(document)
                client.deploy_apps(config, _blocking=False)
                answers.append({"states": waited(serve, stage), "answers": requested(job["port"], stage)})
                answers[-1]["replicas"] = {
                    name: {
                        d: {str(k): n for k, n in s.replica_states.items()}
                        for d, s in app.deployments.items()
                    }
                    for name, app in serve.status().applications.items()
                }
            return answers
        finally:
            ray.shutdown()


def waited(serve: Any, stage: dict[str, Any]) -> dict[str, str]:
    """The applications' states when all are RUNNING, or four seconds after ``until`` came true; when one failed, or when
    time is up."""
    end = time.monotonic() + stage["wait_s"]
    reached = None
    while True:
        time.sleep(0.3)
        applications = serve.status().applications
        states = {name: str(app.status.value) for name, app in applications.items()}
        running = {
            name: sum(d.replica_states.get("RUNNING", 0) for d in app.deployments.values())
            for name, app in applications.items()
        }
        now = time.monotonic()
        if stage["until"] is None:
            if states and all(state == "RUNNING" for state in states.values()):
                return states
        elif reached is None and all(running.get(name, 0) >= n for name, n in stage["until"].items()):
            reached = now
        if any("FAILED" in s for s in states.values()) or now > end or (reached and now > reached + 4):
            for name, app in applications.items():
                messages = {d: s.message for d, s in app.deployments.items()}
                print(name, states[name], running[name], app.message, messages, file=sys.stderr)
            return states


def requested(port: int, stage: dict[str, Any]) -> list[Any]:
    def send(request: dict[str, Any]) -> Any:
        url = f"http://127.0.0.1:{port}/{request['application']}"
        body = json.dumps({"inputs": request["inputs"]}).encode()
        begun = time.monotonic()
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=30) as answer:
                found = json.load(answer) | {"spent": answer.headers["Server-Timing"]}
        except urllib.error.HTTPError as e:
            found = {"status": e.code, "text": e.read().decode()}
        return found | {"seconds": time.monotonic() - begun}

    with ThreadPoolExecutor(stage.get("at_once", 8)) as pool:
        return list(pool.map(send, stage["requests"]))


if __name__ == "__main__":
    found = main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    print("\n" + json.dumps(found), flush=True)
