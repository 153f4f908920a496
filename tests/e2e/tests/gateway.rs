//! The gateway in real pods, the way people and programs use it: waking, idle stop, who is let in, the loss of a gateway.
#![cfg(feature = "cluster")]
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use e2e::chat::Turn;
use e2e::cluster::{Cluster, OPERATOR_NAMESPACE};
use e2e::gateway::{self, Caller, Gateway};
use e2e::workspace::{MODEL_URL, START_LIMIT, Workspace};
use eventsource_stream::Eventsource;
use futures::{StreamExt, future::join_all};
use reqwest::Method;
use serde_json::{Value, json};

/// Requests at once to one sleeping workspace.
const AT_ONCE: usize = 120;

/// A namespace with a model key, and `alice` with her token.
async fn namespace_of_alice(cluster: &Cluster, prefix: &str) -> (String, String) {
    let namespace = cluster.namespace(prefix).await.unwrap();
    let secret = ["create", "secret", "generic", "agent-model", "-n", &namespace, "--from-literal=token=scripted-key"];
    cluster.kubectl(&secret).await.unwrap();
    let token = gateway::person(cluster, &namespace, "alice").await.unwrap();
    (namespace, token)
}

/// A workspace of alice that sleeps until the first request.
fn spec(namespace: &str) -> Value {
    json!({
        "owner": {"user": gateway::user(namespace, "alice")},
        "runPolicy": "OnDemand",
        "lifecycle": {"startOnCreate": "OnFirstRequest", "idleTimeoutSeconds": 60},
        "agent": {
            "model": {"provider": "anthropic", "id": "scripted-model", "baseUrl": MODEL_URL},
            "credentials": [{"name": "model-key", "secretKeyRef": {"name": "agent-model", "key": "token"}, "purpose": "ModelKey"}],
        },
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}},
        "storage": {"size": "100Mi", "retention": {"whenDeleted": "Delete"}},
    })
}

async fn asleep(cluster: &Cluster, namespace: &str, name: &str) -> Workspace {
    let workspace = Workspace::new(cluster, namespace, name);
    workspace.apply(&spec(namespace)).await.unwrap();
    let sleeping = workspace.wait_for("Ready", "True", Some("Sleeping")).await.unwrap();
    assert_eq!(sleeping["status"]["url"], format!("https://{}", gateway::host(namespace, name)));
    workspace
}

fn script(steps: &Value) -> String {
    format!("Run this.\n```model-script\n{steps}\n```")
}

fn command(command: &str) -> String {
    script(&json!([[{"tool": "bash", "input": {"command": command}}], [{"text": "{{lastToolResult}}"}]]))
}

async fn say(caller: Caller<'_>, session: &str, message: &str) -> Turn {
    let turn = caller.chat(session, message).await.unwrap();
    assert_eq!((turn.last_type(), turn.done), (Some("finish"), true), "{:?}", turn.chunks);
    turn
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_wakes_a_sleeping_workspace_streams_and_goes_on_after_a_stop_and_a_start() {
    let cluster = Cluster::default();
    let (namespace, token) = namespace_of_alice(&cluster, "wake").await;
    let workspace = asleep(&cluster, &namespace, "api").await;
    let gateway = Gateway::first(&cluster).await.unwrap();
    let alice = gateway.caller(&namespace, "api", &token);

    // Who only looks wakes nothing.
    alice.sees_it_asleep().await.unwrap();
    assert_eq!(cluster.get(&namespace, "agentworkspacewakes", "api").await.unwrap(), None);

    // The first words arrive while the turn runs: nothing on the way keeps them back.
    let words = script(&json!([[{"text": "first "}, {"sleep": 3000}, {"text": "last"}]]));
    let response = alice.begin_chat("one", &words).await.unwrap();
    assert_eq!(response.status(), 200);
    let mut events = response.bytes_stream().eventsource();
    let mut text = String::new();
    while let Some(event) = events.next().await {
        let event = event.unwrap();
        if event.data.contains("text-delta") {
            text = event.data;
            break;
        }
    }
    assert!(text.contains("first"), "{text}");
    let running = alice.request(Method::GET, "/api/v1/agent/chat/one/stream").send().await.unwrap();
    assert_eq!(running.status(), 200, "the turn still runs");
    let rest: Vec<String> = events.map(|event| event.unwrap().data).collect().await;
    assert_eq!(rest.last().map(String::as_str), Some("[DONE]"));
    drop(running);
    let history = alice.history("one").await.unwrap();
    assert_eq!(history[1], ("assistant".to_owned(), "first last".to_owned()));

    // An explicit stop holds against requests, an explicit start ends it.
    assert_eq!(alice.ask(Method::POST, "/_workspace/stop").await.unwrap(), (202, json!({"state": "stopping"})));
    workspace.wait_for("Ready", "True", Some("Stopped")).await.unwrap();
    let refused = alice.begin_chat("one", "Hello?").await.unwrap();
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["x-workspace-state"]),
        (503, &"stopped".parse().unwrap())
    );
    assert_eq!(alice.ask(Method::POST, "/_workspace/start").await.unwrap(), (200, json!({"state": "running"})));
    assert_eq!(alice.history("one").await.unwrap(), history);
    say(alice, "one", "And once more.").await;
    assert_eq!(alice.history("one").await.unwrap().len(), 4);
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_workspace_stops_by_itself_and_one_with_a_long_command_stays_until_it_has_ended() {
    let cluster = Cluster::default();
    let (namespace, token) = namespace_of_alice(&cluster, "idle").await;
    let (idle, busy) = tokio::join!(asleep(&cluster, &namespace, "idle"), asleep(&cluster, &namespace, "busy"));
    let gateway = Gateway::first(&cluster).await.unwrap();
    let [at_idle, at_busy] = ["idle", "busy"].map(|name| gateway.caller(&namespace, name, &token));
    at_idle.sees_it_asleep().await.unwrap();
    at_busy.sees_it_asleep().await.unwrap();

    let rest = async {
        say(at_idle, "one", "Say something short.").await;
        let asleep = |object: Option<&Value>| object.is_some_and(|object| object["status"]["phase"] == "Sleeping");
        let limit = START_LIMIT * 2;
        let kind = e2e::workspace::KIND;
        let object = cluster.wait(&namespace, kind, "idle", limit, "asleep", asleep).await.unwrap().unwrap();
        assert_eq!(object["status"]["lastStop"]["reason"], "Idle", "{}", object["status"]);
        idle.wait_gone("pod", &idle.pod_name()).await.unwrap();
        // The next message wakes it, and its session goes on.
        say(at_idle, "one", "And once more.").await;
        assert_eq!(at_idle.history("one").await.unwrap().len(), 4);
    };
    // Longer than the idle time from the start of the pod on, without a word from anybody.
    let work = async {
        let turn = say(at_busy, "one", &command("sleep 70 && echo it-ended")).await;
        assert!(turn.text().contains("it-ended"), "{}", turn.text());
        let status = busy.get().await.unwrap().unwrap()["status"].clone();
        assert_eq!((&status["phase"], &status["lastStop"]), (&json!("Running"), &Value::Null), "{status}");
    };
    tokio::join!(rest, work);
    cluster.delete_namespace(&namespace).await.unwrap();
}

/// Whether a TCP connection from a pod to an address is made within three seconds.
async fn opens(cluster: &Cluster, namespace: &str, pod: &str, address: &str) -> bool {
    let script =
        format!("if timeout 3 bash -c '</dev/tcp/{address}/8787' 2>/dev/null; then echo open; else echo closed; fi");
    let said = cluster.kubectl(&["exec", "-n", namespace, pod, "--", "bash", "-c", &script]).await.unwrap();
    match said.trim() {
        "open" => true,
        "closed" => false,
        other => panic!("{namespace}/{pod} to {address}: {other}"),
    }
}

/// A pod that says of itself that it is the gateway.
async fn pretender(cluster: &Cluster, namespace: &str, image: &Value) {
    let container =
        json!({"name": "shell", "image": image, "imagePullPolicy": "IfNotPresent", "command": ["sleep", "600"]});
    let labels = json!({"app.kubernetes.io/name": "agent-workspace-gateway"});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pretender", "namespace": namespace, "labels": labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
    });
    cluster.apply(&pod.to_string()).await.unwrap();
    let runs = |pod: Option<&Value>| pod.is_some_and(|pod| pod["status"]["phase"] == "Running");
    cluster.wait(namespace, "pod", "pretender", START_LIMIT, "running", runs).await.unwrap();
}

const SESSIONS: &str = "/api/v1/agent/sessions";

/// Nobody but alice is let in or wakes it, whatever bob claims about himself.
async fn only_alice_is_let_in(cluster: &Cluster, gateway: &Gateway, namespace: &str, token: &str, namesake: &str) {
    let bob = gateway::person(cluster, namespace, "bob").await.unwrap();
    let caller = |token| gateway.caller(namespace, "api", token);
    let for_the_cluster = gateway::token(cluster, namespace, "alice", &[]).await.unwrap();
    let for_another = gateway::token(cluster, namespace, "alice", &["https://elsewhere.example.com"]).await.unwrap();
    let unknown = ["nonsense", for_the_cluster.as_str(), for_another.as_str()].map(|token| (token, 401));
    for (token, status) in unknown.into_iter().chain([(&*bob, 403), (namesake, 403)]) {
        let woken = caller(token).request(Method::GET, SESSIONS).header("x-workspace-wake", "1");
        assert_eq!(gateway::answer(woken).await.unwrap().0, status);
        assert_eq!(caller(token).begin_chat("one", "Hello").await.unwrap().status(), status);
    }
    let nobody = gateway.request(Method::GET, namespace, "api", SESSIONS).send().await.unwrap();
    assert_eq!(nobody.status(), 401);
    assert_eq!(
        caller(&bob).ask(Method::GET, SESSIONS).await.unwrap(),
        gateway.caller(namespace, "missing", &bob).ask(Method::GET, SESSIONS).await.unwrap(),
        "what is refused and what does not exist look the same"
    );
    let (alice, host) = (gateway::user(namespace, "alice"), gateway::host(namespace, "api"));
    for (header, value) in [
        ("x-forwarded-user", &alice),
        ("x-remote-user", &alice),
        ("x-auth-request-user", &alice),
        ("x-boring-user", &alice),
        ("impersonate-user", &alice),
        ("x-forwarded-host", &host),
        ("proxy-authorization", &format!("Bearer {token}")),
        ("cookie", &format!("__Host-agent-session={token}")),
    ] {
        let forged = caller(&bob).request(Method::POST, SESSIONS).header(header, value).body("{}");
        assert_eq!(gateway::answer(forged).await.unwrap().0, 403, "{header}");
    }
    assert_eq!(cluster.get(namespace, "agentworkspacewakes", "api").await.unwrap(), None, "nothing was woken");
}

/// Commands see no token of anybody; the gateway's token is worth nothing at the pod, and that of the pod nothing at the gateway.
async fn tokens_stay_where_they_are_good(cluster: &Cluster, caller: Caller<'_>, workspace: &Workspace, token: &str) {
    let seen = command("echo marker; env; cat /proc/self/environ /proc/$PPID/environ 2>/dev/null | tr '\\0' '\\n'");
    let turn = say(caller, "one", &seen).await;
    assert!(turn.text().contains("marker"), "{}", turn.text());
    for secret in ["eyJ", "Bearer", "scripted-key", "authorization"] {
        assert!(!turn.text().contains(secret), "{secret}: {}", turn.text());
    }
    let for_the_pod = cluster.token(&workspace.namespace, &workspace.name).await.unwrap();
    let passed_on = caller.with_token(&for_the_pod).ask(Method::GET, SESSIONS).await.unwrap();
    assert_eq!(passed_on.0, 401);
    let forward = cluster.port_forward(&workspace.namespace, &workspace.pod_name(), 8787).await.unwrap();
    let user = gateway::user(&workspace.namespace, "alice");
    for (token, status) in [(token, 403), (&for_the_pod, 200)] {
        let request = reqwest::Client::new().get(format!("{}{SESSIONS}", forward.base_url)).bearer_auth(token);
        let request = request.header("x-forwarded-user", &user).header("x-remote-user", &user);
        assert_eq!(request.send().await.unwrap().status(), status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strangers_forgers_and_neighbours_gain_nothing_and_commands_never_see_a_token() {
    let cluster = Cluster::default();
    let (namespace, token) = namespace_of_alice(&cluster, "safe").await;
    let (elsewhere, namesake) = namespace_of_alice(&cluster, "else").await;
    let workspace = asleep(&cluster, &namespace, "api").await;
    let gateway = Gateway::first(&cluster).await.unwrap();
    let alice = gateway.caller(&namespace, "api", &token);
    alice.sees_it_asleep().await.unwrap();
    only_alice_is_let_in(&cluster, &gateway, &namespace, &token, &namesake).await;
    tokens_stay_where_they_are_good(&cluster, alice, &workspace, &token).await;

    // The gateway came through above; other pods do not, wherever they are and whatever label they bear.
    let pod = cluster.get(&namespace, "pod", &workspace.pod_name()).await.unwrap().unwrap();
    let image = &pod["spec"]["containers"][0]["image"];
    tokio::join!(pretender(&cluster, &namespace, image), pretender(&cluster, &elsewhere, image));
    let address = pod["status"]["podIP"].as_str().unwrap();
    for from in [&namespace, &elsewhere] {
        assert!(!opens(&cluster, from, "pretender", address).await, "from {from}");
    }
    assert_eq!(alice.ask(Method::GET, SESSIONS).await.unwrap().0, 200, "while the gateway does");
    for namespace in [namespace, elsewhere] {
        cluster.delete_namespace(&namespace).await.unwrap();
    }
}

/// What a client has of one turn, over all the streams that it read.
#[derive(Default)]
struct Heard {
    text: String,
    /// Turn and number of each chunk.
    ids: Vec<(String, u64)>,
    done: bool,
}

impl Heard {
    /// Reads until the end or the break; `each` sees what there is after every chunk.
    async fn read(&mut self, response: reqwest::Response, each: impl AsyncFn(&Self)) {
        assert_eq!(response.status(), 200);
        let mut events = response.bytes_stream().eventsource();
        while let Some(Ok(event)) = events.next().await {
            if event.data == "[DONE]" {
                self.done = true;
                continue;
            }
            let (turn, number) = event.id.rsplit_once(':').unwrap();
            self.ids.push((turn.to_owned(), number.parse().unwrap()));
            let chunk: Value = serde_json::from_str(&event.data).unwrap();
            self.text.push_str(chunk["delta"].as_str().filter(|_| chunk["type"] == "text-delta").unwrap_or_default());
            each(self).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_at_all_gateways_wake_once_and_a_gateway_lost_in_mid_stream_costs_no_word() {
    let cluster = Cluster::default();
    let (namespace, token) = namespace_of_alice(&cluster, "many").await;
    asleep(&cluster, &namespace, "api").await;
    let gateways = Gateway::all(&cluster).await.unwrap();
    assert!(gateways.len() > 1, "this needs a second gateway");
    let at = |index: usize| gateways[index % gateways.len()].caller(&namespace, "api", &token);
    for index in 0..gateways.len() {
        at(index).sees_it_asleep().await.unwrap();
    }

    let requests = (0..AT_ONCE)
        .map(|index| gateway::answer(at(index).request(Method::GET, SESSIONS).header("x-workspace-wake", "1")));
    let answers: Vec<u16> = join_all(requests).await.into_iter().map(|answer| answer.unwrap().0).collect();
    assert_eq!(answers, vec![200; AT_ONCE]);
    // Each write of a wake raises the counter, and with it the generation.
    let wake = cluster.get(&namespace, "agentworkspacewakes", "api").await.unwrap().unwrap();
    assert_eq!((&wake["metadata"]["generation"], &wake["spec"]["counter"]), (&json!(1), &json!(1)), "{wake}");

    // A hundred words, and the gateway is killed after some of them.
    let text = (0..100).fold(String::new(), |text, index| text + &format!("word{index} "));
    let words = script(&json!([[{"text": text, "chunks": 100, "delayMs": 60}]]));
    let last = gateways.len() - 1;
    let killed = std::sync::atomic::AtomicBool::new(false);
    let kill = async |heard: &Heard| {
        if heard.text.contains("word9 ") && !killed.swap(true, std::sync::atomic::Ordering::Relaxed) {
            let pod = gateways[last].pod.as_str();
            let kill = ["delete", "pod", pod, "-n", OPERATOR_NAMESPACE, "--grace-period=0", "--force"];
            cluster.kubectl(&kill).await.unwrap();
        }
    };
    let mut heard = Heard::default();
    heard.read(at(last).begin_chat("one", &words).await.unwrap(), kill).await;
    assert!(!heard.done && heard.text.contains("word9 "), "the stream broke in the middle: {}", heard.text);

    let (turn, cursor) = heard.ids.last().unwrap().clone();
    let path = format!("/api/v1/agent/chat/one/{turn}?cursor={cursor}");
    heard.read(at(0).request(Method::GET, &path).send().await.unwrap(), async |_| {}).await;
    assert!(heard.done, "the resumed stream has its end");
    assert_eq!(heard.text, text);
    assert!(heard.ids.is_sorted_by(|one, next| one.0 == next.0 && one.1 < next.1), "{:?}", heard.ids);
    assert_eq!(at(0).history("one").await.unwrap()[1].1, text);
    cluster.delete_namespace(&namespace).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_may_edit_a_namespace_cannot_write_wakes_or_status_there() {
    let cluster = Cluster::default();
    let (namespace, _) = namespace_of_alice(&cluster, "edit").await;
    let account = format!("--serviceaccount={namespace}:alice");
    cluster
        .kubectl(&["create", "rolebinding", "edit", "--clusterrole=edit", &account, "-n", &namespace])
        .await
        .unwrap();
    let user = gateway::user(&namespace, "alice");
    let may = async |verb: &str, what: &str, part: &str| {
        let what = format!("{what}.agents.boring.dev");
        let part = format!("--subresource={part}");
        // It exits with 1 to say no.
        let said = cluster.kubectl(&["auth", "can-i", verb, &what, &part, "-n", &namespace, "--as", &user]).await;
        said.is_ok_and(|said| said.trim() == "yes")
    };
    assert!(may("create", "agentworkspaces", "").await, "edit covers workspaces");
    for (verb, what, part) in [
        ("create", "agentworkspacewakes", ""),
        ("patch", "agentworkspacewakes", ""),
        ("patch", "agentworkspaces", "status"),
        ("create", "agentworkspaces", "connect"),
        ("set", "agentworkspaces", "owner"),
    ] {
        assert!(!may(verb, what, part).await, "{verb} {what} {part}");
    }
    cluster.delete_namespace(&namespace).await.unwrap();
}
