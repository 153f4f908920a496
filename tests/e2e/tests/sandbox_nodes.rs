//! Pods whose node or platform lacks something: what is refused, what serves all the same, and what the status says. And
//! ordinary tools in the pods of every mode.
#![cfg(feature = "cluster")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use e2e::cluster::{Cluster, condition};
use e2e::sandboxes::{
    Profile, applied, attack, install_profile, keep_profiles, namespace, replace_profile, running, sandbox_ready,
};
use e2e::wheel::WHEEL;
use e2e::workspace::{Connection, Workspace};
use serde_json::{Value, json};

/// A profile that permits everything but landlock, which then looks like that of a kernel without it.
const NO_LANDLOCK: &str = "agent-workspace-operator-tests/no-landlock.json";

async fn stalled(workspace: &Workspace, words: &[&str]) {
    let object = workspace.wait_for("Stalled", "True", Some("SandboxUnavailable")).await.unwrap();
    assert_eq!(sandbox_ready(&object), ("False", "SandboxUnavailable"));
    assert_eq!(object["status"]["isolation"], Value::Null);
    let message = condition(&object, "SandboxReady").unwrap()["message"].as_str().unwrap();
    for part in words {
        assert!(message.contains(part), "{part}: {message}");
    }
}

/// How often the pod was made and started.
async fn starts(workspace: &Workspace) -> (String, Value) {
    let pod = workspace.cluster.get(&workspace.namespace, "pod", &workspace.pod_name()).await.unwrap().unwrap();
    let restarts = pod["status"]["containerStatuses"][0]["restartCount"].clone();
    (pod["metadata"]["uid"].as_str().unwrap().to_owned(), restarts)
}

#[tokio::test(flavor = "multi_thread")]
async fn bubblewrap_under_the_runtimes_own_profile_is_refused_with_cause_and_remedy_and_tried_once() {
    let cluster = Cluster::default();
    let namespace = namespace(&cluster, "sandbox-refused", "restricted").await.unwrap();
    replace_profile(&cluster, &namespace, &Profile::RuntimeDefault).await.unwrap();
    let workspace = applied(&cluster, &namespace, "refused", &json!({"mode": "Bubblewrap"})).await.unwrap();
    let words = ["the system refuses user namespaces", "a pod needs a seccomp profile", "docs/operations.md"];
    stalled(&workspace, &words).await;
    let before = starts(&workspace).await;
    assert_eq!(before.1, 0);
    // A second look, after another change: the same pod, never started again.
    workspace.patch(&json!({"podMetadata": {"labels": {"example.com/look": "again"}}})).await.unwrap();
    stalled(&workspace, &words).await;
    assert_eq!(starts(&workspace).await, before);
    keep_profiles(&cluster, &namespace).await.unwrap();
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn on_a_kernel_without_landlock_direct_mode_is_recorded_as_readable_and_landlock_mode_refused() {
    let cluster = Cluster::default();
    let namespace = namespace(&cluster, "sandbox-no-landlock", "privileged").await.unwrap();
    let unknown = 38;
    let profile = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{
            "names": ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"],
            "action": "SCMP_ACT_ERRNO", "errnoRet": unknown,
        }],
    });
    install_profile(&cluster, &namespace, NO_LANDLOCK, &profile).await.unwrap();
    replace_profile(&cluster, &namespace, &Profile::Localhost(NO_LANDLOCK)).await.unwrap();
    let (workspace, object) = running(&cluster, &namespace, "direct", &json!({"mode": "Direct"})).await.unwrap();
    assert_eq!(object["status"]["isolation"], "None");
    assert_eq!(sandbox_ready(&object), ("True", "SecretsReadable"));
    let report = attack(&workspace, "None", "Inherit").await.unwrap();
    assert!(report["isolation"]["probes"].to_string().contains("SecretsReadable"), "{report}");
    let said = run(&workspace.connect().await.unwrap(), "cat /run/boring-agent/model-key/token").await;
    assert!(said.contains("model-key-1"), "{said}");

    let landlock = applied(&cluster, &namespace, "landlock", &json!({"mode": "Landlock"})).await.unwrap();
    stalled(&landlock, &["landlock is not enforced", "needs Linux 5.13 or newer", "use another mode"]).await;
    keep_profiles(&cluster, &namespace).await.unwrap();
    cluster.delete_namespace(&namespace).await.unwrap();
}

/// What people and models do first in a fresh workspace.
const TOOLS: [&str; 6] = [
    "git init -q . && git config user.name a && git config user.email a@b.c",
    "echo x > file && git add file && git commit -q -m first && test -z \"$(git status --short file)\"",
    "python3 wheel.py | base64 -d > greeting-1.0-py3-none-any.whl && python3 -m venv venv && venv/bin/pip install -q --no-index --find-links . greeting && venv/bin/greet",
    "test \"$(seq 100000 | sort -rn | head -n 1)\" = 100000 && yes | head -n 3 > /dev/null",
    "if command -v node; then node -e 'setTimeout(() => {}, 1)'; fi",
    "(python3 -u -m http.server 8999 --bind 127.0.0.1 > log 2>&1 &) ; until grep -q port log 2>/dev/null; do sleep 0.05; done",
];
const FETCH: &str = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://127.0.0.1:8998/file\").read().decode(), end=\"\")'";

async fn run(connection: &Connection, command: &str) -> String {
    turn(connection, &[command]).await
}

/// Runs commands in one turn and gives what the last one said.
async fn turn(connection: &Connection, commands: &[&str]) -> String {
    let mut steps: Vec<Value> =
        commands.iter().map(|command| json!([{"tool": "bash", "input": {"command": command}}])).collect();
    steps.push(json!([{"text": "{{lastToolResult}}"}]));
    let turn = connection.chat("tools", &format!("```model-script\n{}\n```", json!(steps))).await.unwrap();
    assert_eq!(turn.last_type(), Some("finish"), "{:?}", turn.chunks);
    turn.text()
}

#[tokio::test(flavor = "multi_thread")]
async fn ordinary_tools_work_in_the_pods_of_every_mode() {
    let cluster = Cluster::default();
    let restricted = namespace(&cluster, "sandbox-tools", "restricted").await.unwrap();
    let privileged = namespace(&cluster, "sandbox-tools-full", "privileged").await.unwrap();
    let modes = [
        (&restricted, "direct", json!({"mode": "Direct"}), true),
        (&restricted, "landlock", json!({"mode": "Landlock"}), true),
        (&restricted, "bubblewrap", json!({"mode": "Bubblewrap"}), false),
        (&privileged, "full", json!({"mode": "Bubblewrap", "procMount": "Full"}), true),
    ];
    for (namespace, name, sandbox, shows_processes) in modes {
        let (workspace, _) = running(&cluster, namespace, name, &sandbox).await.unwrap();
        let connection = workspace.connect().await.unwrap();
        let mut script = format!("set -e\ncat > wheel.py <<'END'\n{WHEEL}\nEND\n{}", TOOLS.join("\n"));
        if shows_processes {
            script += "\nps ax | grep -q http.server && cat <(echo a) | grep -q a";
        }
        script += "\necho all of it works";
        let said = turn(&connection, &[&script]).await;
        assert!(said.contains("hello from a library") && said.contains("all of it works"), "{name}: {said}");
        let serve = "python3 -u -m http.server 8998 --bind 127.0.0.1 > log2 2>&1 & until grep -q port log2 2>/dev/null; do sleep 0.05; done";
        let said = turn(&connection, &[serve, FETCH]).await;
        assert!(said.starts_with('x') || said.contains("\nx\n"), "{name}: {said}");
    }
    for namespace in [restricted, privileged] {
        cluster.delete_namespace(&namespace).await.unwrap();
    }
}
