//! Who is let in, where to, and with what.

use serde_json::json;

use crate::{
    agent::Agent,
    support::eventually,
    world::{World, answer, code, uid},
};

#[tokio::test]
async fn the_owner_reaches_the_pod_by_host_and_by_path_and_the_pod_sees_a_token_made_for_it() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    let workspace = world.workspace("api", "alice", json!({})).await;
    let agent = Agent::start("pod-1", 1).await;
    world.runs("api", "pod-1", &agent.ip).await;
    let host = world.host("api");
    gateway.serves(&host, &token).await;

    let request = gateway.request("POST", &host, "/api/v1/files?path=a%20b").bearer_auth(&token).body("12345");
    let (status, shown) = answer(request.header("x-forwarded-user", "root").header("x-remote-user", "root")).await;
    assert_eq!(status, 200);
    assert_eq!(
        (&shown["method"], &shown["target"], &shown["bytes"]),
        (&json!("POST"), &json!("/api/v1/files?path=a%20b"), &json!(5))
    );
    let headers = &shown["headers"];
    assert_eq!(headers["host"], format!("{}:8787", agent.ip));
    assert_eq!(headers["x-forwarded-host"], host);
    assert!(headers["x-forwarded-user"].is_null() && headers["x-remote-user"].is_null(), "{headers}");
    let seen = headers["authorization"].as_str().expect("a header").trim_start_matches("Bearer ").to_owned();
    assert_ne!(seen, token, "the caller's own token never reaches a pod");
    let claims = claims(&seen);
    let audience = format!("{}/api/{}/pod-1", world.namespace, uid(&workspace));
    assert_eq!(
        (&claims["iss"], &claims["aud"], &claims["sub"], &claims["scope"]),
        (&json!("agents.boring.dev/gateway"), &json!(audience), &json!(world.user("alice")), &json!("user"))
    );

    let by_path = format!("/w/{}/api/api/v1/tree?path=.", world.namespace);
    let response =
        gateway.request("GET", "gateway.example", &by_path).bearer_auth(&token).send().await.expect("an answer");
    assert_eq!(response.headers()["content-security-policy"], "sandbox");
    assert!(response.headers().get("set-cookie").is_none(), "no cookie on the origin that all share");
    assert_eq!(response.headers()["x-turn-id"], "turn-1");
    let shown: serde_json::Value = serde_json::from_str(&response.text().await.expect("a body")).expect("JSON");
    assert_eq!(shown["target"], "/api/v1/tree?path=.");
    assert_eq!(shown["headers"]["x-forwarded-prefix"], format!("/w/{}/api", world.namespace));
    gateway.stop().await;
    world.remove().await;
}

fn claims(token: &str) -> serde_json::Value {
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
    let claims = token.split('.').nth(1).expect("three parts");
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).expect("base64url")).expect("JSON")
}

#[tokio::test]
async fn only_tokens_for_the_gateway_are_taken_unless_it_is_told_otherwise() {
    let world = World::new().await;
    world.person("alice").await;
    world.workspace("api", "alice", json!({})).await;
    let agent = Agent::start("pod-1", 2).await;
    world.runs("api", "pod-1", &agent.ip).await;
    let (host, for_the_cluster) = (world.host("api"), world.cluster_token("alice").await);

    let strict = world.gateway().await;
    for bad in [for_the_cluster.as_str(), "rubbish", "a.b.c"] {
        assert_eq!(code(&strict.get(&host, "/api/v1/tree", bad).await), (401, "auth_required"));
    }
    assert_eq!(code(&answer(strict.request("GET", &host, "/api/v1/tree")).await), (401, "auth_required"));
    strict.stop().await;
    let settings = operator::gateway::Settings { accept_cluster_tokens: true, ..world.settings() };
    let lenient = world.gateway_with(settings).await;
    lenient.serves(&host, &for_the_cluster).await;
    assert_eq!(code(&lenient.get(&host, "/api/v1/tree", "rubbish").await), (401, "auth_required"));
    lenient.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn a_stranger_learns_nothing_and_whom_the_access_review_allows_gets_in_where_the_workspace_says_so() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let (alice, bob) = (world.person("alice").await, world.person("bob").await);
    world.workspace("private", "alice", json!({})).await;
    world.workspace("shared", "alice", json!({"access": {"visibility": "Authorized"}})).await;
    world.workspace("local", "alice", json!({"access": {"exposure": "ClusterLocal"}})).await;
    let agent = Agent::start("pod-1", 3).await;
    for name in ["private", "shared", "local"] {
        world.runs(name, "pod-1", &agent.ip).await;
    }
    gateway.serves(&world.host("private"), &alice).await;
    gateway.serves(&world.host("shared"), &alice).await;

    let there = gateway.get(&world.host("private"), "/api/v1/tree", &bob).await;
    assert_eq!(there, gateway.get(&world.host("nothing"), "/api/v1/tree", &bob).await);
    assert_eq!(code(&there), (403, "auth_invalid"));
    assert_eq!(code(&gateway.get(&world.host("shared"), "/api/v1/tree", &bob).await), (403, "auth_invalid"));
    let not_exposed = gateway.get(&world.host("local"), "/api/v1/tree", &alice).await;
    assert_eq!(code(&not_exposed), (403, "not_exposed"));
    let anonymous = answer(gateway.request("GET", &world.host("private"), "/")).await;
    assert_eq!(anonymous, answer(gateway.request("GET", &world.host("nothing"), "/")).await);

    world.let_connect("bob").await;
    gateway.serves(&world.host("shared"), &bob).await;
    assert_eq!(
        gateway.get(&world.host("private"), "/api/v1/tree", &bob).await,
        there,
        "the owner alone is let in there"
    );
    world.forbid_to_connect("bob").await;
    eventually("bob is out again", async || gateway.get(&world.host("shared"), "/api/v1/tree", &bob).await.0 == 403)
        .await;
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn nothing_is_sent_to_an_address_that_has_another_pod_or_that_no_pod_can_have() {
    let world = World::new().await;
    let gateway = world.gateway().await;
    let token = world.person("alice").await;
    world.workspace("api", "alice", json!({})).await;
    let agent = Agent::start("somebody-elses", 4).await;
    let host = world.host("api");
    world.runs("api", "pod-1", &agent.ip).await;
    eventually("the workspace is known", async || gateway.get(&host, "/api/v1/tree", &token).await.0 == 503).await;
    assert_eq!(code(&gateway.get(&host, "/api/v1/tree", &token).await), (503, "starting"));
    // An address of the loopback network that is not among the ranges of pods: the same double would answer there.
    world.runs("api", "somebody-elses", "127.0.0.1").await;
    assert_eq!(code(&gateway.get(&host, "/api/v1/tree", &token).await), (503, "starting"));
    assert_eq!(agent.seen(), Vec::<String>::new());
    agent.become_pod("pod-1");
    world.runs("api", "pod-1", &agent.ip).await;
    gateway.serves(&host, &token).await;
    assert!(agent.seen().contains(&"/api/v1/tree".to_owned()));
    gateway.stop().await;
    world.remove().await;
}

#[tokio::test]
async fn what_names_no_workspace_is_not_found_and_a_body_that_is_too_large_is_refused() {
    let world = World::new().await;
    let settings = operator::gateway::Settings { max_body_bytes: 10, ..world.settings() };
    let gateway = world.gateway_with(settings).await;
    for (host, target) in [("gateway.example", "/"), ("alice.agents.test", "/"), ("x", "/w/a/B/")] {
        assert_eq!(code(&answer(gateway.request("GET", host, target)).await), (404, "not_found"), "{host}{target}");
    }
    let large = gateway.request("POST", &world.host("api"), "/api/v1/files").body("12345678901");
    assert_eq!(code(&answer(large).await), (413, "payload_too_large"));
    // Without a length it shows only as it comes.
    let token = world.person("alice").await;
    world.workspace("api", "alice", json!({})).await;
    let agent = Agent::start("pod-1", 5).await;
    world.runs("api", "pod-1", &agent.ip).await;
    gateway.serves(&world.host("api"), &token).await;
    let pieces = futures::stream::iter(["123456", "789012"].map(Ok::<_, std::io::Error>));
    let large = gateway.request("POST", &world.host("api"), "/api/v1/files").bearer_auth(&token);
    let answer = large.body(reqwest::Body::wrap_stream(pieces)).send().await;
    assert!(answer.map_or(true, |answer| answer.status() == 413), "refused, or broken off while it was sent");
    gateway.stop().await;
    world.remove().await;
}
