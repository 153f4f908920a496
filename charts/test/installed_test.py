"""The chart on a real API server: helm installs, upgrades and uninstalls it; the policy and the roles act.

Needs KUBECONFIG of a cluster of its own (a control plane is enough: no pod has to run), KUBECTL and HELM.
Closing line: `N passed, N failed`.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import unittest

CHART = pathlib.Path(__file__).parent.parent / "agent-workspace-operator"
SYSTEM = "agent-workspace-system"
NAME = "agent-workspace-operator"
TEAM = f"team-{os.getpid()}"
KIND = "agentworkspaces.agents.boring.dev"
# Roles and policies take effect within a second or two; on a busy machine longer.
LIMIT_SECONDS = 30


def run(*command, text=None):
    """Output of a command, or an error with its words."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def kubectl(*arguments, text=None, user=None):
    return run(os.environ["KUBECTL"], *arguments, *(["--as", user] if user else []), text=text)


def helm(*arguments):
    return run(os.environ["HELM"], *arguments, "--namespace", SYSTEM)


def install(*arguments):
    return helm("upgrade", "--install", NAME, str(CHART), "--create-namespace", "--set-json", "networkPolicy.clusterCIDRs=[]", *arguments)


def create(name, owner=None, user=None, namespace=TEAM):
    """Asks the server, without a trace, whether a workspace could be created."""
    spec = {"owner": {"user": owner}} if owner else {}
    manifest = {"apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace",
                "metadata": {"name": name, "namespace": namespace}, "spec": spec}
    return kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(manifest), user=user)


def may(user, verb, resource):
    """Whether the API server allows it, as `kubectl auth can-i` says."""
    kind, _, part = resource.partition("/")
    done = subprocess.run([os.environ["KUBECTL"], "auth", "can-i", verb, kind, f"--subresource={part}", "--namespace", TEAM, "--as", user],
                          capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() == "yes"


def eventually(what, holds):
    """Waits for a condition; never longer than the limit."""
    end = time.monotonic() + LIMIT_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"not within {LIMIT_SECONDS} s: {what}")
        time.sleep(0.1)


def refused(call):
    """The server's words when it refuses; None when it does not."""
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return None


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        install("--set", "replicas=0")
        kubectl("wait", "--for=condition=Established", f"crd/{KIND}", "--timeout=60s")
        kubectl("create", "namespace", TEAM)
        for user in ("view", "edit", "admin"):
            kubectl("create", "rolebinding", user, "--clusterrole", user, "--user", user, "--namespace", TEAM)
        eventually("the roles are aggregated", lambda: may("edit", "create", KIND))
        eventually("the policy acts", lambda: refused(lambda: create("mine", owner="alice", user="edit")))

    @classmethod
    def tearDownClass(cls):
        helm("uninstall", NAME)
        kubectl("delete", "crd", "-l", f"app.kubernetes.io/part-of={NAME}")
        kubectl("delete", "namespace", TEAM, "--wait=false")

    def test_a_user_creates_workspaces_for_himself_and_for_nobody(self):
        create("mine", owner="edit", user="edit")
        create("nobodys", user="edit")

    def test_a_user_does_not_create_workspaces_for_others(self):
        words = refused(lambda: create("theirs", owner="alice", user="edit"))
        self.assertIn("spec.owner.user: you are edit and may create workspaces only for yourself", words)
        self.assertIn(f"verb set on agentworkspaces/owner in the namespace {TEAM}", words)

    def test_whoever_has_the_verb_set_creates_workspaces_for_others(self):
        kubectl("create", "role", "setter", "--verb=set", f"--resource={KIND}/owner", "--namespace", TEAM)
        for role in ("--role=setter", "--clusterrole=edit"):
            kubectl("create", "rolebinding", "setter-" + role.split("=")[1], role, "--user=setter", "--namespace", TEAM)
        eventually("the right acts", lambda: not refused(lambda: create("theirs", owner="alice", user="setter")))

    def test_a_name_that_does_not_fit_in_a_host_name_is_refused(self):
        # The name alone may have 52 characters; with the namespace of 22 they are 74, and 39 fit.
        create("a" * 39, namespace=SYSTEM)
        words = refused(lambda: create("a" * 40, namespace=SYSTEM))
        self.assertIn("the name (40) and the namespace (22) may have 61 characters together", words)

    def test_the_built_in_roles_reach_workspaces_and_nothing_of_the_operator(self):
        expected = {
            ("view", "list", KIND): True, ("view", "create", KIND): False,
            ("edit", "create", KIND): True, ("edit", "delete", KIND): True, ("edit", "create", f"{KIND}/connect"): False,
            ("edit", "patch", f"{KIND}/status"): False, ("edit", "update", f"{KIND}/finalizers"): False,
            ("admin", "create", f"{KIND}/connect"): True, ("admin", "patch", f"{KIND}/status"): False,
        }
        self.assertEqual({key: may(*key) for key in expected}, expected)

    def test_an_upgrade_changes_what_was_asked_and_false_means_false(self):
        install("--set", "replicas=0", "--set", "admissionPolicy.enabled=false", "--set", "podDisruptionBudget.enabled=false")
        try:
            self.assertNotIn(NAME, kubectl("get", "validatingadmissionpolicies", "-o", "name"))
            self.assertEqual(kubectl("get", "poddisruptionbudgets", "-n", SYSTEM, "-o", "name"), "")
            self.assertEqual(kubectl("get", f"deployment/{NAME}", "-n", SYSTEM, "-o", "jsonpath={.spec.replicas}"), "0")
        finally:
            install("--set", "replicas=0")
            eventually("the policy acts", lambda: refused(lambda: create("mine", owner="alice", user="edit")))

    def test_uninstalling_keeps_the_definition_and_the_workspaces(self):
        manifest = {"apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace", "metadata": {"name": "kept", "namespace": TEAM}, "spec": {}}
        kubectl("create", "-f", "-", text=json.dumps(manifest))
        helm("uninstall", NAME)
        try:
            self.assertEqual(kubectl("get", KIND, "-n", TEAM, "-o", "name").strip(), "agentworkspace.agents.boring.dev/kept")
            self.assertEqual(kubectl("get", "clusterroles", "-l", f"app.kubernetes.io/part-of={NAME}", "-o", "name"), "")
        finally:
            # The definition that was kept is taken over by the next installation.
            install("--set", "replicas=0")
            kubectl("delete", KIND, "kept", "-n", TEAM)
            eventually("the roles are aggregated", lambda: may("edit", "create", KIND))
            eventually("the policy acts", lambda: refused(lambda: create("mine", owner="alice", user="edit")))


if __name__ == "__main__":
    outcome = unittest.main(exit=False, verbosity=2).result
    failed = len(outcome.failures) + len(outcome.errors)
    print(f"{max(outcome.testsRun - failed, 0)} passed, {failed} failed")
    sys.exit(failed > 0 or not outcome.testsRun)
