"""A Kubernetes API server as far as Helm asks one in a dry run: its version, its APIs, and what is there."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

APIS = {
    "v1": [("configmaps", "ConfigMap"), ("pods", "Pod"), ("secrets", "Secret"), ("services", "Service")],
    "apps/v1": [("statefulsets", "StatefulSet")],
    "networking.k8s.io/v1": [("networkpolicies", "NetworkPolicy")],
    "policy/v1": [("poddisruptionbudgets", "PodDisruptionBudget")],
}


class FakeCluster:
    """Serves `objects` read-only, by name, on a free loopback port, as Kubernetes `version` (such as ``1.33.0``)."""

    def __init__(self, version: str, objects: list[dict[str, Any]] | None = None) -> None:
        self.version = version
        self.objects = {(item["kind"], item["metadata"]["name"]): item for item in objects or []}
        self.requests: list[tuple[str, str]] = []
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                cluster.requests.append((self.command, self.path))
                status, document = cluster.answer(self.path.partition("?")[0]) if self.command == "GET" else (405, {})
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815  # http.server's names

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def kubeconfig(self) -> str:
        """A kubeconfig that leads here, as YAML."""
        server = f"http://127.0.0.1:{self._server.server_address[1]}"
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "fake",
                "clusters": [{"name": "fake", "cluster": {"server": server}}],
                "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
                "users": [{"name": "fake", "user": {}}],
            }
        )

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, path: str) -> tuple[int, Mapping[str, Any]]:
        """Return the status and the document for a GET of `path`."""
        parts = path.strip("/").split("/")
        if path == "/version":
            major, minor, _ = self.version.split(".")
            return 200, {"major": major, "minor": minor, "gitVersion": f"v{self.version}", "platform": "linux/amd64"}
        if path == "/api":
            return 200, {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return 200, {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [_group(api) for api in APIS if "/" in api],
            }
        api = "/".join(parts[1:2] if parts[0] == "api" else parts[1:3])
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if api not in APIS:
            return 404, _failure(404)
        if not rest:
            resources = [
                {"name": name, "kind": kind, "namespaced": True, "verbs": ["get", "list"]} for name, kind in APIS[api]
            ]
            return 200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": resources}
        kinds = dict(APIS[api])
        if rest[0] == "namespaces" and len(rest) >= 3 and rest[2] in kinds:
            kind = kinds[rest[2]]
            if len(rest) == 3:
                return 200, {"kind": f"{kind}List", "apiVersion": api, "metadata": {}, "items": []}
            found = self.objects.get((kind, rest[3]))
            return (200, found) if found else (404, _failure(404))
        return 404, _failure(404)


def _group(api: str) -> dict[str, Any]:
    name, version = api.split("/")
    entry = {"groupVersion": api, "version": version}
    return {"name": name, "versions": [entry], "preferredVersion": entry}


def _failure(code: int) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "NotFound",
        "code": code,
        "message": "-",
    }
