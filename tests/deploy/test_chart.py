"""The Helm chart, rendered by Helm's own library: what comes out is valid for Kubernetes, gives
little away; wrong values are refused."""

import json
import re
from typing import Any

import pytest
import yaml

from tests.deploy.tools import DEPLOY, run, tool

CHART = DEPLOY / "helm" / "shoal"
LEAST = {
    "broker": "mqtts://broker.example",
    "secrets": {"tls": "aggregator-tls", "bundle": "watch-bundle"},
}
MOST = LEAST | {
    "secrets": {"tls": "t", "bundle": "b", "database": "d"},
    "database": "postgresql://shoal@db.example/shoal",
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


def render(values: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The objects of a release, and what Helm says against its values."""
    done = run(tool("python"), "-c", RENDER, CHART, json.dumps(values))
    return (json.loads(done.stdout), "") if done.returncode == 0 else ([], done.stderr)


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
    pod = service["template"]["spec"]
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


def test_values_that_cannot_be_are_refused_by_name() -> None:
    done = run(
        tool("python"), "-c", REFUSE, CHART, json.dumps([LEAST | change for change, _ in REFUSED])
    )
    told = done.stdout.splitlines()
    assert len(told) == len(REFUSED), done.stderr
    assert [
        (line, name)
        for line, (_, name) in zip(told, REFUSED, strict=True)
        if line == "taken" or name not in line
    ] == []
