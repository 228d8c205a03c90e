"""What is handed to a cluster: valid by the official schemas, and without rights."""

import dataclasses
import itertools

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from orchestrate.engines.kubernetes.manifests import job_manifest, object_name, run_selector
from results.schema import Data, Device
from tests.support import PROJECT

DIGEST = "sha256:" + "a" * 64
EVERYTHING = {
    "namespace": "bench",
    "node_selector": {"nvidia.com/gpu.product": "NVIDIA-L4"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": "a", "value": "b", "effect": "NoExecute"}],
    "image_pull_secrets": ["registry"],
    "queue": "gpus",
    "service_account": "bench",
    "runtime_class": "nvidia",
    "data_claim": "imagenet",
}


def pod_of(job, host, digest=None):
    return job_manifest(job, host, host.queue, digest)["spec"]["template"]["spec"]


@pytest.fixture
def some_jobs(bench):
    """Give a function that plans repeats on a fleet."""

    def make(queue=None, fleet="", **case):
        one = bench()
        host = one.host(fleet, **(queue or {}))
        return host, one.plan(host, repeats=1, **case).jobs

    return make


@pytest.mark.parametrize("version", ["1.25", "1.29", "1.33", "1.37"])
@pytest.mark.slow
def test_manifests_are_valid_in_several_versions_of_kubernetes(some_jobs, version):
    host, (job,) = some_jobs()
    full = host.model_copy(update={"cpus": 7.5, "memory_gb": 30, "kubernetes": type(host.queue)(**EVERYTHING)})
    reading = dataclasses.replace(job, case=dataclasses.replace(job.case, data=Data.TFRECORD))
    for owner, one in itertools.product((host, full), (job, reading)):
        kubernetes_validate.validate(job_manifest(one, owner, owner.queue, DIGEST), version, strict=True)
    for name in ("rbac.yml", "network-policy.yml"):  # what administrators apply
        for document in YAML(typ="safe").load_all((PROJECT / "containers/kubernetes" / name).read_text()):
            kubernetes_validate.validate(document, version, strict=True)


def test_the_role_allows_what_the_launcher_asks_and_nothing_else():
    documents = YAML(typ="safe").load_all((PROJECT / "containers/kubernetes/rbac.yml").read_text())
    rules = {item["kind"]: item["rules"] for item in documents if "rules" in item}
    allowed = {(resource, verb) for rule in rules["Role"] for resource in rule["resources"] for verb in rule["verbs"]}
    jobs = {("jobs", verb) for verb in ("create", "list", "delete")}
    assert allowed == jobs | {("pods", "list"), ("pods/log", "get"), ("events", "list")}
    assert [rule["resources"] for rule in rules["ClusterRole"]] == [["nodes"]]


@pytest.mark.slow
def test_a_pod_has_no_rights_and_openshift_chooses_its_user_alone(some_jobs):
    host, (job,) = some_jobs()
    pod = pod_of(job, host)
    (container,) = pod["containers"]
    context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"].items() >= (context | {"runAsUser": 10001}).items()
    refused = dict.fromkeys(("allowPrivilegeEscalation", "privileged"), False)
    allowed = {"readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
    assert container["securityContext"] == refused | allowed
    assert all("sizeLimit" in volume["emptyDir"] for volume in pod["volumes"])
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    written = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert written == {"/out", "/tmp", "/dev/shm"}, "a user without a name writes to empty volumes only"
    on_openshift = host.model_copy(update={"kubernetes": host.queue.model_copy(update={"security": "openshift"})})
    assert pod_of(job, on_openshift) == {**pod, "securityContext": context}


def test_autoscalers_leave_repeats_alone_and_gpu_nodes_take_them(some_jobs):
    host, (job,) = some_jobs(num_gpus=[2], device="gpu")
    host = host.model_copy(update={"kubernetes": host.queue.model_copy(update={"gpu_resource": "example.com/gpu"})})
    on_cpu = dataclasses.replace(job, case=dataclasses.replace(job.case, device=Device.CPU, num_gpus=1))
    template, plain = (job_manifest(one, host, host.queue)["spec"]["template"] for one in (job, on_cpu))
    assert template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert template["metadata"]["annotations"]["karpenter.sh/do-not-disrupt"] == "true"
    taint = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert template["spec"]["tolerations"] == [taint] and "tolerations" not in plain["spec"]
    (container,) = template["spec"]["containers"]
    assert container["resources"]["limits"]["example.com/gpu"] == "2"
    assert "--num_gpus=2" in container["args"] and "--print_record" in container["args"]


def test_a_data_set_is_a_claim_that_a_pod_reads_where_its_case_needs_it(some_jobs):
    host, jobs = some_jobs({"data_claim": "imagenet"}, data=["synthetic", "tfrecord"])
    reading, plain = (pod_of(job, host) for job in sorted(jobs, key=lambda job: job.case.data is not Data.TFRECORD))
    claim = {"name": "data", "persistentVolumeClaim": {"claimName": "imagenet", "readOnly": True}}
    assert [volume for volume in reading["volumes"] if volume not in plain["volumes"]] == [claim]
    (container,), (other,) = reading["containers"], plain["containers"]
    mount = {"name": "data", "mountPath": "/data", "readOnly": True}
    assert [found for found in container["volumeMounts"] if found not in other["volumeMounts"]] == [mount]
    assert "--data_dir=/data" in container["args"]
    assert not [flag for flag in other["args"] if flag.startswith("--data_dir")]


def test_a_job_has_its_hosts_variables_and_ends_without_a_controller(some_jobs):
    host, (job,) = some_jobs()
    given = host.model_copy(update={"environment": {"NCCL_SOCKET_IFNAME": "=eth0", "XLA_FLAGS": "--xla_x=$(HOME)"}})
    spec = job_manifest(dataclasses.replace(job, max_seconds=600.0), given, host.queue)["spec"]
    pod = spec["template"]["spec"]
    variables = {item["name"]: item["value"] for item in pod["containers"][0]["env"]}
    assert variables["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert variables["XLA_FLAGS"] == "--xla_x=$$(HOME)", "Kubernetes replaces $(HOME), and writes $$ as $"
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert "--max_seconds=600" in pod["containers"][0]["args"]
    assert 600 < pod["activeDeadlineSeconds"] < spec["activeDeadlineSeconds"]


def test_names_fit_and_differ_by_run_and_repeat(some_jobs):
    host, (job,) = some_jobs()
    long = dataclasses.replace(job, id="Cloud.kubernetes." + "very_long-" * 20 + ".r1")
    other = dataclasses.replace(long, id=long.id[:-1] + "2")
    again = dataclasses.replace(long, origin=dataclasses.replace(long.origin, run_id="x" * 90 + "é"))
    names = {object_name(one) for one in (job, long, other, again)}
    assert len(names) == 4 and max(map(len, names)) <= 52
    kubernetes_validate.validate(job_manifest(again, host, host.queue), "1.33", strict=True)
    assert len(run_selector(again.origin.run_id).partition("=")[2]) <= 63
