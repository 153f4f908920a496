"""The chart, rendered by the real helm. Each test is a sentence; each compares what a user would install.

Closing line: `N passed, N failed`.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

CHART = pathlib.Path(__file__).parent.parent / "agent-workspace-operator"
NAMESPACE = "agent-workspace-system"
NAME = "agent-workspace-operator"
GATEWAY = "agent-workspace-gateway"
# A gateway as small as it may be.
GATEWAY_VALUES = {"enabled": True, "domain": "agents.example.com", "podCIDRs": ["10.244.0.0/16"]}
# The oldest Kubernetes that the chart promises to work with.
KUBERNETES = "1.34.0"
# The one value without a default.
CIDRS = {"networkPolicy": {"clusterCIDRs": []}}


def merge(target, patch):
    """Nested values, the second on top."""
    result = dict(target)
    for key, value in patch.items():
        result[key] = merge(result[key], value) if isinstance(value, dict) and isinstance(result.get(key), dict) else value
    return result


def helm(*arguments, values):
    """Runs helm with values on standard input."""
    command = [os.environ["HELM"], *arguments, "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, timeout=60, check=False)


def render(values=None, complete=True, chart=CHART):
    """All objects as {(kind, name): object}; fails with helm's own words."""
    values = merge(CIDRS, values or {}) if complete else values
    done = helm("template", NAME, str(chart), "--namespace", NAMESPACE, "--kube-version", KUBERNETES, values=values)
    if done.returncode:
        raise RuntimeError(done.stderr)
    objects = [each for each in yaml.safe_load_all(done.stdout) if each]
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in objects}
    assert len(by_name) == len(objects), "two objects of one kind and name"
    return by_name


def deployment(values=None):
    return render(values)["Deployment", NAME]


def pod(values=None):
    return deployment(values)["spec"]["template"]["spec"]


def environment(values=None):
    """The container's variables with plain values."""
    return {each["name"]: each["value"] for each in pod(values)["containers"][0]["env"] if "value" in each}


class Chart(unittest.TestCase):
    def refused(self, values, *words, complete=True):
        """Rendering fails and the message holds the words."""
        with self.assertRaises(RuntimeError) as caught:
            render(values, complete)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_helm_lint_finds_nothing(self):
        done = helm("lint", str(CHART), "--strict", "--kube-version", KUBERNETES, values=CIDRS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_default_values_give_exactly_these_objects(self):
        kinds = sorted(f"{kind} {name}" for kind, name in render())
        self.assertEqual(kinds, [
            f"ClusterRole {NAME}",
            f"ClusterRole {NAME}-admin",
            f"ClusterRole {NAME}-edit",
            f"ClusterRole {NAME}-view",
            f"ClusterRoleBinding {NAME}",
            "CustomResourceDefinition agentworkspaces.agents.boring.dev",
            "CustomResourceDefinition agentworkspacewakes.agents.boring.dev",
            f"Deployment {NAME}",
            f"PodDisruptionBudget {NAME}",
            f"Role {NAME}",
            f"RoleBinding {NAME}",
            f"Service {NAME}-metrics",
            f"ServiceAccount {NAME}",
            f"ValidatingAdmissionPolicy {NAME}",
            f"ValidatingAdmissionPolicyBinding {NAME}",
        ])

    def test_each_definition_is_the_generated_file_kept_on_uninstall(self):
        files = {}
        for path in (CHART / "files/crds").glob("*.yaml"):
            generated = yaml.safe_load(path.read_text())
            files[generated["metadata"]["name"]] = generated
        self.assertTrue(files)
        rendered = {name: each for (kind, name), each in render().items() if kind == "CustomResourceDefinition"}
        for each in rendered.values():
            self.assertEqual(each["metadata"].pop("annotations"), {"helm.sh/resource-policy": "keep"})
            self.assertEqual(each["metadata"].pop("labels")["app.kubernetes.io/part-of"], NAME)
        self.assertEqual(rendered, files)

    def test_definitions_can_be_left_out(self):
        kinds = {kind for kind, _ in render({"crds": {"install": False}})}
        self.assertNotIn("CustomResourceDefinition", kinds)

    def test_the_rules_are_the_generated_ones_and_bound_to_the_account(self):
        objects = render()
        for kind, name, file in [("ClusterRole", NAME, "operator-cluster"), ("Role", NAME, "operator-namespace"),
                                 ("ClusterRole", f"{NAME}-view", "view"), ("ClusterRole", f"{NAME}-edit", "edit"),
                                 ("ClusterRole", f"{NAME}-admin", "admin")]:
            expected = yaml.safe_load((CHART / f"files/rbac/{file}.yaml").read_text())
            self.assertEqual(objects[kind, name]["rules"], expected, name)
        for kind in ("ClusterRoleBinding", "RoleBinding"):
            self.assertEqual(objects[kind, NAME]["subjects"], [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}])

    def test_the_operator_may_read_secrets_only_in_its_own_namespace(self):
        for rule in render()["ClusterRole", NAME]["rules"]:
            self.assertFalse({"secrets", "*"} & set(rule.get("resources", [])), rule)

    def test_no_role_for_people_writes_status_or_finalizers(self):
        for role in ("view", "edit", "admin"):
            for rule in render()["ClusterRole", f"{NAME}-{role}"]["rules"]:
                for resource in rule["resources"]:
                    self.assertFalse(resource == "*" or resource.endswith(("/status", "/finalizers")), (role, rule))

    def test_the_roles_for_people_extend_the_built_in_ones(self):
        for role in ("view", "edit", "admin"):
            labels = render()["ClusterRole", f"{NAME}-{role}"]["metadata"]["labels"]
            self.assertEqual(labels[f"rbac.authorization.k8s.io/aggregate-to-{role}"], "true")
        self.assertNotIn(("ClusterRole", f"{NAME}-view"), render({"aggregatedRoles": {"enabled": False}}))

    def test_the_pod_passes_the_restricted_level(self):
        spec = pod()
        self.assertEqual(spec["securityContext"], {
            "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}})
        self.assertEqual(spec["containers"][0]["securityContext"], {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}})

    def test_the_pods_carry_the_label_that_workspaces_admit(self):
        template = deployment()["spec"]["template"]
        self.assertEqual(template["metadata"]["labels"]["app.kubernetes.io/name"], NAME)

    def test_selectors_match_the_pods(self):
        objects = render({"metrics": {"serviceMonitor": {"enabled": True}}})
        labels = objects["Deployment", NAME]["spec"]["template"]["metadata"]["labels"]
        for selector in (objects["Deployment", NAME]["spec"]["selector"]["matchLabels"],
                         objects["PodDisruptionBudget", NAME]["spec"]["selector"]["matchLabels"],
                         objects["Service", f"{NAME}-metrics"]["spec"]["selector"]):
            self.assertLessEqual(selector.items(), labels.items())
        service = objects["Service", f"{NAME}-metrics"]["metadata"]["labels"]
        monitor = objects["ServiceMonitor", NAME]["spec"]["selector"]["matchLabels"]
        self.assertLessEqual(monitor.items(), service.items())

    def test_defaults_of_the_deployment(self):
        spec = deployment()["spec"]
        self.assertEqual(spec["replicas"], 2)
        self.assertEqual(spec["template"]["spec"]["containers"][0]["image"], f"{NAME}/operator:0.1.0")
        self.assertEqual(environment(), {
            "RUST_LOG": "info",
            "OPERATOR_LISTEN": "0.0.0.0:8080",
            "OPERATOR_LEADER_ELECTION": "true",
            "OPERATOR_AGENT_IMAGE": f"{NAME}/agent-server:0.1.0",
            "OPERATOR_AGENT_IMAGE_PULL_POLICY": "IfNotPresent",
            "OPERATOR_ALLOWED_SECRET_PREFIX": "agent-",
            "OPERATOR_ALLOW_SANDBOX_DEGRADE": "false",
            "OPERATOR_BUBBLEWRAP_SECCOMP_PROFILE": "localhost/agent-workspace-operator/bubblewrap.json",
            "OPERATOR_CLUSTER_CIDRS": "",
            "OPERATOR_KEY_ROTATION_DAYS": "30",
            "OPERATOR_MODEL_NAMESPACES": "",
            "OPERATOR_DNS_NAMESPACE_LABELS": "kubernetes.io/metadata.name=kube-system",
            "OPERATOR_DNS_POD_LABELS": "k8s-app=kube-dns",
            "OPERATOR_DNS_CIDRS": "",
        })

    def test_a_digest_wins_over_a_tag(self):
        image = {"repository": "registry.example/operator", "tag": "1", "digest": "sha256:" + "a" * 64}
        self.assertEqual(pod({"image": image})["containers"][0]["image"], "registry.example/operator@sha256:" + "a" * 64)

    # the gateway

    def gateway(self, values=None):
        return render({"gateway": merge(GATEWAY_VALUES, values or {})})

    def test_the_gateway_is_installed_only_when_asked_for(self):
        self.assertNotIn(("Deployment", GATEWAY), render())
        self.assertNotIn("OPERATOR_WORKSPACE_URL", environment())
        kinds = sorted(f"{kind} {name}" for kind, name in self.gateway() if GATEWAY in name)
        self.assertEqual(kinds, [
            f"ClusterRole {GATEWAY}",
            f"ClusterRoleBinding {GATEWAY}",
            f"Deployment {GATEWAY}",
            f"NetworkPolicy {GATEWAY}",
            f"PodDisruptionBudget {GATEWAY}",
            f"Role {GATEWAY}",
            f"RoleBinding {GATEWAY}",
            f"Service {GATEWAY}",
            f"Service {GATEWAY}-metrics",
            f"ServiceAccount {GATEWAY}",
        ])

    def test_the_gateway_has_the_generated_rights_and_no_others(self):
        objects = self.gateway()
        for kind, file in [("ClusterRole", "gateway-cluster"), ("Role", "gateway-namespace")]:
            self.assertEqual(objects[kind, GATEWAY]["rules"], yaml.safe_load((CHART / f"files/rbac/{file}.yaml").read_text()))
            binding = objects[f"{kind}Binding", GATEWAY]
            self.assertEqual(binding["subjects"], [{"kind": "ServiceAccount", "name": GATEWAY, "namespace": NAMESPACE}])
            self.assertEqual((binding["roleRef"]["kind"], binding["roleRef"]["name"]), (kind, GATEWAY))
        for rule in objects["ClusterRole", GATEWAY]["rules"]:
            self.assertFalse({"secrets", "pods", "leases", "*"} & set(rule["resources"]), rule)

    def test_the_gateway_without_the_ranges_of_pods_or_a_name_is_refused(self):
        self.refused({"gateway": {"enabled": True, "domain": "agents.example.com"}}, "gateway.podCIDRs is required")
        self.refused({"gateway": {"enabled": True, "podCIDRs": []}}, "gateway.domain or gateway.host is required")
        self.refused({"gateway": merge(GATEWAY_VALUES, {"httpRoute": {"enabled": True}})}, "parentRefs is required")
        self.refused({"gateway": merge(GATEWAY_VALUES, {"domain": "https://agents.example.com"})}, "domain")

    def test_the_gateway_and_the_operator_agree_on_where_workspaces_are(self):
        def urls(values):
            objects = render({"gateway": merge({"enabled": True, "podCIDRs": ["10.244.0.0/16", "fd00::/48"]}, values)})
            def variables(name):
                container = objects["Deployment", name]["spec"]["template"]["spec"]["containers"][0]
                return {each["name"]: each.get("value") for each in container["env"]}
            return variables(NAME)["OPERATOR_WORKSPACE_URL"], variables(GATEWAY).get("GATEWAY_DOMAIN"), variables(GATEWAY)["GATEWAY_POD_CIDRS"]
        ranges = "10.244.0.0/16,fd00::/48"
        self.assertEqual(urls({"domain": "a.example.com"}), ("https://{name}--{namespace}.a.example.com", "a.example.com", ranges))
        self.assertEqual(urls({"host": "g.example.com:8443"}), ("https://g.example.com:8443/w/{namespace}/{name}", None, ranges))

    def test_the_gateways_pods_pass_the_restricted_level_and_outlive_their_drain(self):
        spec = self.gateway({"drain": {"delaySeconds": 0, "seconds": 100}})["Deployment", GATEWAY]["spec"]["template"]["spec"]
        self.assertEqual(spec["securityContext"], {
            "runAsNonRoot": True, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}})
        self.assertEqual(spec["containers"][0]["securityContext"], {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}})
        self.assertEqual((spec["terminationGracePeriodSeconds"], spec["containers"][0]["args"]), (110, ["gateway"]))

    def test_the_gateways_pods_carry_the_label_that_workspaces_admit_and_selectors_match_them(self):
        objects = render({"gateway": GATEWAY_VALUES, "metrics": {"serviceMonitor": {"enabled": True}}})
        labels = objects["Deployment", GATEWAY]["spec"]["template"]["metadata"]["labels"]
        self.assertEqual(labels["app.kubernetes.io/name"], GATEWAY)
        for selector in (objects["Deployment", GATEWAY]["spec"]["selector"]["matchLabels"],
                         objects["PodDisruptionBudget", GATEWAY]["spec"]["selector"]["matchLabels"],
                         objects["NetworkPolicy", GATEWAY]["spec"]["podSelector"]["matchLabels"],
                         objects["Service", GATEWAY]["spec"]["selector"],
                         objects["Service", f"{GATEWAY}-metrics"]["spec"]["selector"]):
            self.assertLessEqual(selector.items(), labels.items())
        service = objects["Service", f"{GATEWAY}-metrics"]["metadata"]["labels"]
        monitor = objects["ServiceMonitor", GATEWAY]["spec"]["selector"]["matchLabels"]
        self.assertLessEqual(monitor.items(), service.items())

    def test_everybody_may_connect_to_the_gateway_unless_somebody_is_named(self):
        policy = self.gateway()["NetworkPolicy", GATEWAY]["spec"]["ingress"]
        self.assertNotIn("from", policy[0])
        peers = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress"}}}]
        policy = self.gateway({"networkPolicy": {"from": peers}})["NetworkPolicy", GATEWAY]["spec"]["ingress"]
        self.assertEqual(policy[0]["from"], peers)

    def test_an_ingress_and_a_route_lead_both_names_to_the_gateway(self):
        values = {"host": "g.example.com", "ingress": {"enabled": True, "className": "nginx", "tlsSecretName": "wildcard"},
                  "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]}}
        objects = self.gateway(values)
        hosts = ["*.agents.example.com", "g.example.com"]
        ingress = objects["Ingress", GATEWAY]["spec"]
        self.assertEqual([rule["host"] for rule in ingress["rules"]], hosts)
        self.assertEqual(ingress["tls"], [{"secretName": "wildcard", "hosts": hosts}])
        self.assertEqual(ingress["ingressClassName"], "nginx")
        self.assertEqual(objects["HTTPRoute", GATEWAY]["spec"]["hostnames"], hosts)
        self.assertEqual(objects["HTTPRoute", GATEWAY]["spec"]["rules"][0]["backendRefs"], [{"name": GATEWAY, "port": 80}])

    # false, 0 and empty are values

    def test_zero_replicas_are_zero(self):
        self.assertEqual(deployment({"replicas": 0})["spec"]["replicas"], 0)

    def test_zero_is_honoured_in_every_number(self):
        values = {"terminationGracePeriodSeconds": 0, "podDisruptionBudget": {"maxUnavailable": 0}}
        self.assertEqual(pod(values)["terminationGracePeriodSeconds"], 0)
        self.assertEqual(render(values)["PodDisruptionBudget", NAME]["spec"]["maxUnavailable"], 0)

    def test_concurrency_arrives_only_when_set(self):
        self.assertNotIn("OPERATOR_CONCURRENCY", environment())
        self.assertEqual(environment({"concurrency": 64})["OPERATOR_CONCURRENCY"], "64")

    def test_false_is_honoured_in_every_switch(self):
        objects = render({
            "replicas": 1, "leaderElection": {"enabled": False}, "admissionPolicy": {"enabled": False},
            "podDisruptionBudget": {"enabled": False}, "metrics": {"service": {"enabled": False}},
            "aggregatedRoles": {"enabled": False}})
        kinds = {kind for kind, _ in objects}
        self.assertFalse(kinds & {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "PodDisruptionBudget", "Service"})
        variables = {each["name"]: each.get("value") for each in objects["Deployment", NAME]["spec"]["template"]["spec"]["containers"][0]["env"]}
        self.assertEqual(variables["OPERATOR_LEADER_ELECTION"], "false")

    def test_an_empty_prefix_allows_every_name(self):
        self.assertEqual(environment({"allowedSecretPrefix": ""})["OPERATOR_ALLOWED_SECRET_PREFIX"], "")

    def test_permitted_model_namespaces_arrive_and_rubbish_is_refused(self):
        values = {"networkPolicy": {"modelNamespaces": ["models", "agent-demo"]}}
        self.assertEqual(environment(values)["OPERATOR_MODEL_NAMESPACES"], "models,agent-demo")
        self.refused({"networkPolicy": {"modelNamespaces": ["a,b"]}}, "modelNamespaces")

    def test_nobody_and_everybody_may_read_metrics(self):
        self.assertNotIn("OPERATOR_METRICS_FROM_POD_LABELS", environment())
        everybody = environment({"networkPolicy": {"metricsFrom": {"namespaceLabels": {}, "podLabels": {}}}})
        self.assertEqual(everybody["OPERATOR_METRICS_FROM_NAMESPACE_LABELS"], "")
        self.assertEqual(everybody["OPERATOR_METRICS_FROM_POD_LABELS"], "")

    def test_no_spread_when_the_list_is_empty(self):
        self.assertNotIn("topologySpreadConstraints", pod({"topologySpreadConstraints": []}))
        self.assertEqual(len(pod()["topologySpreadConstraints"]), 1)

    # what cannot work is refused

    def test_the_cluster_ranges_are_never_guessed(self):
        self.refused({}, "networkPolicy.clusterCIDRs is required", complete=False)

    def test_two_operators_without_election_are_refused(self):
        self.refused({"leaderElection": {"enabled": False}}, "leaderElection.enabled=false needs replicas of 0 or 1")

    def test_a_monitor_without_a_service_is_refused(self):
        self.refused({"metrics": {"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}}, "needs metrics.service.enabled")

    def test_a_misspelt_value_is_refused(self):
        self.refused({"replica": 3}, "replica")
        self.refused({"image": {"tags": "x"}}, "tags")

    def test_a_value_of_the_wrong_type_is_refused(self):
        self.refused({"replicas": "two"}, "replicas")
        self.refused({"networkPolicy": {"clusterCIDRs": ["10.0.0.0"]}}, "clusterCIDRs")
        self.refused({"concurrency": 0}, "concurrency")

    # everything else that can be set arrives

    def test_placement_and_metadata_arrive(self):
        values = {
            "nodeSelector": {"a": "b"}, "tolerations": [{"key": "k", "operator": "Exists"}], "priorityClassName": "high",
            "affinity": {"nodeAffinity": {}}, "podLabels": {"team": "platform"}, "podAnnotations": {"note": "1"},
            "imagePullSecrets": [{"name": "login"}], "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
            "serviceAccount": {"name": "special", "annotations": {"role": "x"}},
            "resources": {"requests": {"cpu": "1", "memory": None}, "limits": None},
        }
        objects = render(values)
        template = objects["Deployment", NAME]["spec"]["template"]
        spec = template["spec"]
        for key in ("nodeSelector", "tolerations", "priorityClassName", "affinity", "imagePullSecrets"):
            self.assertEqual(spec[key], values[key], key)
        self.assertEqual(template["metadata"]["labels"]["team"], "platform")
        self.assertEqual(template["metadata"]["annotations"], {"note": "1"})
        self.assertEqual(environment(values)["HTTPS_PROXY"], "http://proxy:3128")
        self.assertEqual(spec["serviceAccountName"], "special")
        self.assertEqual(objects["ServiceAccount", "special"]["metadata"]["annotations"], {"role": "x"})
        self.assertEqual(objects["ClusterRoleBinding", NAME]["subjects"][0]["name"], "special")
        self.assertEqual(spec["containers"][0]["resources"], {"requests": {"cpu": "1"}})

    def test_the_policy_denies_and_looks_at_creation_only(self):
        objects = render()
        policy = objects["ValidatingAdmissionPolicy", NAME]["spec"]
        self.assertEqual(policy["failurePolicy"], "Fail")
        self.assertEqual(policy["matchConstraints"]["resourceRules"], [{
            "apiGroups": ["agents.boring.dev"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["agentworkspaces"]}])
        self.assertEqual(objects["ValidatingAdmissionPolicyBinding", NAME]["spec"], {"policyName": NAME, "validationActions": ["Deny"]})

    def test_every_documented_value_is_used_and_every_used_value_documented(self):
        used = "".join(path.read_text() for path in (CHART / "templates").iterdir())
        for key in yaml.safe_load((CHART / "values.yaml").read_text()):
            self.assertIn(f".Values.{key}", used)

    def test_the_operator_learns_what_sandboxes_may_be(self):
        got = environment()
        self.assertEqual(got["OPERATOR_BUBBLEWRAP_SECCOMP_PROFILE"], "localhost/agent-workspace-operator/bubblewrap.json")
        self.assertEqual(got["OPERATOR_ALLOW_SANDBOX_DEGRADE"], "false")
        got = environment({"sandbox": {"seccompProfile": "unconfined", "allowDegrade": True}})
        self.assertEqual((got["OPERATOR_BUBBLEWRAP_SECCOMP_PROFILE"], got["OPERATOR_ALLOW_SANDBOX_DEGRADE"]), ("unconfined", "true"))
        self.refused({"sandbox": {"seccompProfile": "runtime/default"}}, "seccompProfile")

    def test_the_installer_mounts_one_folder_of_the_host_and_carries_the_profile(self):
        objects = render({"sandbox": {"seccompInstaller": {"enabled": True, "kubeletSeccompFolder": "/data/seccomp"}}})
        profile = json.loads(objects["ConfigMap", f"{NAME}-seccomp"]["data"]["bubblewrap.json"])
        allowed = {name for each in profile["syscalls"] if each["action"] == "SCMP_ACT_ALLOW" for name in each["names"]}
        self.assertEqual(profile["defaultAction"], "SCMP_ACT_ERRNO")
        self.assertLessEqual({"clone", "unshare", "mount", "umount2", "pivot_root", "sethostname", "read"}, allowed)
        self.assertFalse({"keyctl", "bpf", "io_uring_setup", "ptrace", "setns", "init_module", "clone3"} & allowed)
        spec = objects["DaemonSet", f"{NAME}-seccomp"]["spec"]["template"]["spec"]
        self.assertEqual([each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each], ["/data/seccomp"])
        self.assertIs(spec["automountServiceAccountToken"], False)
        self.assertEqual(spec["containers"][0]["securityContext"]["capabilities"], {"drop": ["ALL"]})

    def test_the_notes_warn_of_a_missing_policy(self):
        # `helm template` leaves the notes out, and helm's dry runs want a cluster: here they are rendered as a ConfigMap.
        with tempfile.TemporaryDirectory() as folder:
            chart = pathlib.Path(folder) / NAME
            shutil.copytree(CHART, chart)
            notes = chart / "templates/NOTES.txt"
            (chart / "templates/notes.yaml").write_text(
                '{{- define "notes" }}' + notes.read_text() + '{{ end }}\n'
                'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: notes}\ndata: {text: {{ include "notes" . | toJson }}}\n')
            notes.unlink()
            for values, word in [({}, "kubectl apply"), ({"admissionPolicy": {"enabled": False}}, "WARNING: admissionPolicy"),
                                 ({"replicas": 0}, "replicas is 0"), ({"allowedSecretPrefix": "bot-"}, 'begin with "bot-"')]:
                self.assertIn(word, render(values, chart=chart)["ConfigMap", "notes"]["data"]["text"])


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=2).result
    failed = len(outcome.failures) + len(outcome.errors)
    print(f"{max(outcome.testsRun - failed, 0)} passed, {failed} failed")
    sys.exit(failed > 0)
