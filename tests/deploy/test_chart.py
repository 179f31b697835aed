"""The Helm charts, rendered by Helm's own library: what comes out is valid for Kubernetes, gives
little away; wrong values are refused."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from helper.main import parser
from tests.deploy.tools import DEPLOY, run, tool

CHART = DEPLOY / "helm" / "shoal"
LEAST = {
    "broker": "mqtts://broker.example",
    "secrets": {"tls": "aggregator-tls", "bundle": "watch-bundle"},
}
MOST = LEAST | {
    "secrets": {"tls": "t", "bundle": "b", "database": "d"},
    "database": "postgresql://shoal@db.example/shoal",
    "helpers": "helpers",
    "settings": {"ROUNDS": "40", "RELEASE": "auto"},
    "image": {"repository": "registry.example/shoal", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "pull"}],
    "enrolment": {"enabled": True, "broker": "mqtts://fleet.example"},
    "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
    "serviceMonitor": {"enabled": True, "tokenSecret": "prometheus"},
    "prometheusRule": {"enabled": True, "labels": {"release": "monitoring"}},
    "persistence": {"storageClass": "fast", "size": "50Gi"},
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "fleet", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
HELPER = DEPLOY / "helm" / "shoal-helper"
HELPER_LEAST = {
    "helper": "north",
    "broker": "mqtts://broker.example",
    "config": "helper",
    "tls": "helper-tls",
}
HELPER_MOST = (
    HELPER_LEAST
    | {"minSum": 20}
    | {
        name: MOST[name]
        for name in (
            "image",
            "imagePullSecrets",
            "persistence",
            "nodeSelector",
            "tolerations",
            "affinity",
        )
    }
)
RENDER = """
import json, sys
from helm_python.chart import Chart, lint
from kubernetes_validate import validate
import yaml
chart, values = sys.argv[1], json.loads(sys.argv[2])
loaded = Chart.load(chart)
loaded.validate_schema(loaded.merge_values(values))
report = lint(chart, values, strict=True)
found = [m for m in report["messages"] if m["severity"] > 1]
assert not found, found
written = loaded.render(values, name="autumn")
rendered = [text for path, text in written.items() if path.endswith(".yaml")]
objects = [o for text in rendered for o in yaml.safe_load_all(text) if o]
for version in ("1.27", "1.37"):
    for o in objects:
        if not o["apiVersion"].startswith("monitoring"):
            validate(o, version, strict=True)
print(json.dumps(objects))
"""


def render(values: dict[str, Any], chart: Path = CHART) -> tuple[list[dict[str, Any]], str]:
    """The objects of a release, and what Helm says against its values."""
    result = run(tool("python"), "-c", RENDER, chart, json.dumps(values))
    return (json.loads(result.stdout), "") if result.returncode == 0 else ([], result.stderr)


@pytest.mark.parametrize("values", [LEAST, MOST], ids=["least", "most"])
def test_a_release_is_valid_for_kubernetes(values: dict[str, Any]) -> None:
    objects, told = render(values)
    assert told == ""
    kinds = {o["kind"] for o in objects}
    assert kinds >= {
        "StatefulSet",
        "Service",
        "ConfigMap",
        "PersistentVolumeClaim",
        "NetworkPolicy",
    }
    assert ("ServiceMonitor" in kinds) == (values is MOST)
    assert ("PrometheusRule" in kinds) == (values is MOST)
    (service,) = (o["spec"] for o in objects if o["kind"] == "StatefulSet")
    assert service["replicas"] == 1, "a fleet has one aggregator at a time"
    gives_little_away(service["template"]["spec"])


def gives_little_away(pod: dict[str, Any]) -> None:
    """Assert that a pod has no more rights, and no other volumes, than it needs."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    for container in [*pod["containers"], *pod.get("initContainers", [])]:
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "memory" in container["resources"]["limits"]
        assert "env" not in container, "settings are in the ConfigMap, secrets in files"
    mounted = {
        mount["name"]
        for container in [*pod["containers"], *pod.get("initContainers", [])]
        for mount in container["volumeMounts"]
    }
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_rules_of_the_chart_are_the_alerts_of_the_compose_file() -> None:
    objects, told = render(MOST)
    assert told == ""
    (rule,) = (o for o in objects if o["kind"] == "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((DEPLOY / "monitoring" / "alerts.yml").read_text())
    assert rule["metadata"]["labels"]["release"] == "monitoring"
    jobs = set(re.findall(r'job="(\w+)"', json.dumps(rule["spec"]).replace("\\", "")))
    (monitor,) = (o for o in objects if o["kind"] == "ServiceMonitor")
    assert jobs == {monitor["metadata"]["labels"][monitor["spec"]["jobLabel"]]}


def test_every_setting_of_the_configmap_is_one_of_serve() -> None:
    import typer

    from shoal.cli import application

    commands: Any = typer.main.get_command(application("serve"))
    known = {
        "SHOAL_BROKER",
        *(f"SHOAL_SERVE_{option.name.upper()}" for option in commands.commands["serve"].params),
    }
    named = set(
        re.findall(
            r"^  (SHOAL_\w+):", (CHART / "templates" / "configmap.yaml").read_text(), re.MULTILINE
        )
    )
    assert len(named) > 8
    assert sorted(named - known) == []


def helper_pod(values: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of a helper's release."""
    objects, error = render(values, HELPER)
    assert error == ""
    assert {o["kind"] for o in objects} == {"Deployment", "PersistentVolumeClaim"}
    for o in objects:
        if o["kind"] == "PersistentVolumeClaim":
            assert o["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    (helper,) = (o["spec"] for o in objects if o["kind"] == "Deployment")
    assert (helper["replicas"], helper["strategy"]) == (1, {"type": "Recreate"})
    pod: dict[str, Any] = helper["template"]["spec"]
    return pod


@pytest.mark.parametrize("values", [HELPER_LEAST, HELPER_MOST], ids=["least", "most"])
def test_a_helpers_release_is_valid_for_kubernetes(values: dict[str, Any]) -> None:
    pod = helper_pod(values)
    gives_little_away(pod)
    (helper,) = pod["containers"]
    arguments = parser().parse_args(helper["args"])
    assert arguments.min_sum == values.get("minSum", 5)
    assert arguments.metrics == f"0.0.0.0:{helper['ports'][0]['containerPort']}"
    mounts = {mount["mountPath"]: mount for mount in helper["volumeMounts"]}
    assert all("subPath" not in mount for mount in mounts.values())
    assert {
        mounts[str(path.parent)]["name"]
        for path in (
            arguments.folder,
            arguments.trust,
            arguments.roster,
            arguments.ca,
            arguments.cert,
            arguments.key,
        )
    } == {"state", "config", "tls"}
    probe = json.dumps(helper["livenessProbe"]["exec"]["command"][-1])
    assert probe in (DEPLOY / "containers" / "helper.Dockerfile").read_text()


@pytest.mark.parametrize("lost", ["", "helper.key", "ledger"])
def test_a_helper_is_made_once_and_never_beside_what_is_left_of_another(
    lost: str, tmp_path: Path
) -> None:
    pod = helper_pod(HELPER_LEAST)
    (init,) = pod["initContainers"]
    folder = tmp_path / "helper"
    command = [str(folder) if word == "/state/helper" else word for word in init["command"]]
    assert str(folder) in command
    assert f"--folder=/state/{folder.name}" in pod["containers"][0]["args"]
    program = tmp_path / "shoal-helper"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m helper.main "$@"\n')
    program.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    first = run(*command, PATH=path)
    assert first.stdout.startswith(f"{folder}: helper north of the fleet default\n"), first.stderr
    if lost:
        (folder / lost).unlink()
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    again = run(*command, PATH=path)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_service_in_secret_mode_has_its_helpers_keys() -> None:
    for values in (LEAST, MOST):
        objects, error = render(values)
        assert error == ""
        (settings,) = (o["data"] for o in objects if o["kind"] == "ConfigMap")
        (service,) = (o["spec"] for o in objects if o["kind"] == "StatefulSet")
        (container,) = service["template"]["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert (settings.get("SHOAL_SERVE_SECRET"), settings.get("SHOAL_SERVE_HELPERS")) == (
            ("1", f"{mounts['helpers']}/helpers.pem") if values is MOST else (None, None)
        )


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"broker": ""}, "/broker"),
    ({"broker": "mqtt://broker.example"}, "/broker"),
    ({"broker": "mqtts://user:password@broker"}, "/broker"),
    ({"database": "postgresql://shoal:password@db/shoal"}, "/database"),
    ({"secrets": {"tls": "", "bundle": "b"}}, "/secrets/tls"),
    ({"replicas": 2}, "replicas"),
    ({"settings": {"ROUNDS": 40}}, "/settings/ROUNDS"),
    ({"serviceMonitor": {"enabled": True}}, "/serviceMonitor/tokenSecret"),
    ({"prometheusRule": {"enabled": "yes"}}, "/prometheusRule/enabled"),
    ({"helpers": ["north"]}, "/helpers"),
]
HELPER_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"helper": ""}, "/helper"),
    ({"helper": "north/east"}, "/helper"),
    ({"broker": "mqtt://broker.example"}, "/broker"),
    ({"config": ""}, "/config"),
    ({"tls": ""}, "/tls"),
    ({"minSum": 1}, "/minSum"),
    ({"replicas": 2}, "replicas"),
]
REFUSE = """
import json, sys
from helm_python.chart import Chart
from helm_python.errors import HelmValuesError
chart = Chart.load(sys.argv[1])
for values in json.loads(sys.argv[2]):
    try:
        chart.validate_schema(chart.merge_values(values))
        print("taken")
    except HelmValuesError as error:
        print(str(error).replace("\\n", " "))
"""


@pytest.mark.parametrize(
    ("chart", "least", "refused"),
    [(CHART, LEAST, REFUSED), (HELPER, HELPER_LEAST, HELPER_REFUSED)],
    ids=["service", "helper"],
)
def test_values_that_cannot_be_are_refused_by_name(
    chart: Path, least: dict[str, Any], refused: list[tuple[dict[str, Any], str]]
) -> None:
    done = run(
        tool("python"), "-c", REFUSE, chart, json.dumps([least | change for change, _ in refused])
    )
    told = done.stdout.splitlines()
    assert len(told) == len(refused), done.stderr
    assert [
        (line, name)
        for line, (_, name) in zip(told, refused, strict=True)
        if line == "taken" or name not in line
    ] == []
