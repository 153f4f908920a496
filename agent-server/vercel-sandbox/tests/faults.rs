//! Each scripted fault: nothing is lost, nothing is done twice, and the error is a defined one.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::atomic::Ordering;

use base64::Engine;
use common::{HOME, TOKEN, World, builder, told};
use fakes::vercel::{Action, Fault, Options};
use serde_json::{Value, json};
use vercel_sandbox::{CommandRequest, Create, Credentials, Durable, Error, File};

/// Whole characters of two and three bytes, in lines.
const TEXT: &str = "größe 日本\nzweite Zeile: ñ\n";

fn named() -> Create {
    Create { name: Some("box".to_owned()), ..Create::default() }
}

async fn world_with_box() -> (World, Durable) {
    let world = World::new().await;
    let durable = world.client.persistent().create(&named()).await.unwrap();
    (world, durable)
}

/// Appends to a file, so that a second run would be seen, and prints.
fn counted() -> CommandRequest {
    CommandRequest::new("sh", ["-c".to_owned(), format!("echo run >> runs.txt; printf '{TEXT}'")])
}

async fn runs(durable: &Durable) -> String {
    let read = durable.read_file("runs.txt", 1000).await.unwrap();
    read.map(|content| String::from_utf8(content.to_vec()).unwrap()).unwrap_or_default()
}

fn status(status: u16, body: Value, retry_after: Option<u64>) -> Action {
    Action::Status { status, body, retry_after }
}

#[tokio::test]
async fn a_stream_in_pieces_of_one_byte_is_whole() {
    let (world, durable) = world_with_box().await;
    world.double().script(Fault::once("POST", "/cmd", Action::Pieces { bytes: 1 }));
    let mut run = durable.run(&counted()).await.unwrap();
    assert_eq!(told(run.collect().await.unwrap()), (TEXT.to_owned(), String::new(), Some(0)));
}

#[tokio::test]
async fn output_that_is_cut_anywhere_is_taken_up_again_and_the_command_runs_once() {
    let (world, durable) = world_with_box().await;
    // The first line, with the command, has about 270 bytes; the cuts fall into the lines of output and the last line.
    for bytes in [300, 310, 320, 330, 331, 332, 333, 334, 340, 360, 420, 480] {
        world.double().script(Fault::once("POST", "/cmd", Action::Cut { bytes }));
        world.double().script(Fault::once("GET", "/logs", Action::Cut { bytes: 45 }));
        let mut run = durable.run(&counted()).await.unwrap();
        assert_eq!(told(run.collect().await.unwrap()), (TEXT.to_owned(), String::new(), Some(0)), "cut at {bytes}");
        // What the cuts did not need stays in the script; a read uses it up.
        let id = run.command().unwrap().to_owned();
        let _ = durable.machine().await.follow(&id).collect().await.unwrap();
    }
    assert_eq!(runs(&durable).await, "run\n".repeat(12));
    world.no_rule_was_broken();
}

#[tokio::test]
async fn an_answer_that_is_cut_before_it_names_the_command_is_an_unknown_outcome() {
    let (world, durable) = world_with_box().await;
    world.double().script(Fault::once("POST", "/cmd", Action::Cut { bytes: 20 }));
    let mut run = durable.run(&counted()).await.unwrap();
    assert_eq!(run.collect().await.unwrap_err().reason(), "OutcomeUnknown");
    assert_eq!(world.count("POST", "/cmd"), 1);
}

#[tokio::test]
async fn output_that_never_comes_whole_is_a_cut_and_no_end() {
    let (world, durable) = world_with_box().await;
    let mut run = durable.run(&counted()).await.unwrap();
    let (_, command) = run.collect().await.unwrap();
    world.double().script(Fault::times(100, "GET", "/logs", Action::Cut { bytes: 3 }));
    let error = durable.machine().await.follow(&command.id).collect().await.unwrap_err();
    assert!(matches!(error, Error::StreamCut { command: cut, .. } if cut == command.id));
    assert_eq!(runs(&durable).await, "run\n");
}

#[tokio::test]
async fn a_vm_that_vanishes_under_a_command_is_an_error_and_not_an_exit() {
    let world = World::new().await;
    let durable = world.client.persistent().create(&Create { persistent: Some(false), ..named() }).await.unwrap();
    let machine = durable.machine().await;
    let command = machine.start(&CommandRequest::new("sleep", ["60"])).await.unwrap();
    world.double().advance(300_000);
    let error = machine.follow(&command.id).collect().await.unwrap_err();
    assert!(error.is_status(410), "{error}");
}

#[tokio::test]
async fn a_lost_answer_of_a_command_is_never_run_again() {
    let (world, durable) = world_with_box().await;
    for action in [Action::LostAnswer, status(502, json!("<html>bad gateway</html>"), None)] {
        world.double().script(Fault::once("POST", "/cmd", action));
        assert_eq!(durable.run(&counted()).await.unwrap_err().reason(), "OutcomeUnknown");
    }
    assert_eq!(world.count("POST", "/cmd"), 2);
}

#[tokio::test]
async fn a_lost_answer_of_a_creation_is_found_again_by_its_name() {
    let world = World::new().await;
    world.double().script(Fault::once("POST", "/v3/sandboxes", Action::LostAnswer));
    let durable = world.client.persistent().get_or_create(&named()).await.unwrap();
    assert_eq!((durable.name.as_str(), world.double().running()), ("box", 1));
    assert_eq!(world.count("POST", "/v3/sandboxes"), 1);
    world.no_rule_was_broken();
}

#[tokio::test]
async fn two_creators_of_one_name_get_one_sandbox() {
    let world = World::new().await;
    let persistent = world.client.persistent();
    let create = named();
    let (first, second) = tokio::join!(persistent.get_or_create(&create), persistent.get_or_create(&create));
    assert_eq!(first.unwrap().first.id, second.unwrap().first.id);
    assert_eq!(world.double().running(), 1);
}

#[tokio::test]
async fn calls_that_change_nothing_twice_are_repeated_after_every_loss() {
    let (world, durable) = world_with_box().await;
    let file = [File::new("a.txt", "content")];
    for action in [Action::LostAnswer, Action::Refused, status(500, Value::Null, None)] {
        world.double().script(Fault::once("POST", "/fs/write", action.clone()));
        durable.write_files(HOME, &file).await.unwrap();
        world.double().script(Fault::once("POST", "/fs/read", action));
        assert_eq!(durable.read_file("a.txt", 100).await.unwrap().unwrap(), "content");
    }
    for action in [Action::NoHeaders, Action::Cut { bytes: 4 }] {
        world.double().script(Fault::once("POST", "/fs/read", action));
        assert_eq!(durable.read_file("a.txt", 100).await.unwrap().unwrap(), "content");
    }
    world.double().script(Fault::once("DELETE", "/box", Action::LostAnswer));
    assert!(!world.client.persistent().delete("box", false).await.unwrap());
    world.no_rule_was_broken();
}

#[tokio::test]
async fn a_file_answer_that_is_json_is_not_the_files_content() {
    let (world, durable) = world_with_box().await;
    world.double().script(Fault::once("POST", "/fs/read", status(200, json!({"error": {"code": "x"}}), None)));
    assert_eq!(durable.read_file("a.txt", 100).await.unwrap_err().reason(), "Protocol");
}

#[tokio::test]
async fn a_file_of_an_unknown_vm_is_an_error_and_not_an_absent_file() {
    let (world, _durable) = world_with_box().await;
    let error = world.client.persistent().machine("sbx_unknown").read_file("a.txt", 100).await.unwrap_err();
    assert!(error.is_status(404), "{error}");
}

#[tokio::test]
async fn retry_after_is_waited_for_up_to_twenty_seconds_also_for_commands() {
    let (world, durable) = world_with_box().await;
    world.double().script(Fault::once("POST", "/cmd", status(429, Value::Null, Some(7))));
    durable.run(&counted()).await.unwrap().collect().await.unwrap();
    assert_eq!(world.clock.0.load(Ordering::SeqCst), 7100);
    world.double().script(Fault::once("POST", "/cmd", status(429, Value::Null, Some(21))));
    let error = durable.run(&counted()).await.unwrap_err();
    assert!(matches!(error, Error::RateLimited { retry_after: Some(wait) } if wait.as_secs() == 21));
    assert_eq!((runs(&durable).await.as_str(), world.count("POST", "/cmd")), ("run\n", 3));
}

#[tokio::test]
async fn an_outage_opens_the_breaker_and_one_probe_each_thirty_seconds_remains() {
    let (world, durable) = world_with_box().await;
    world.double().script(Fault::times(1000, "POST", "/fs/read", status(503, Value::Null, None)));
    assert_eq!(durable.read_file("a", 1).await.unwrap_err().reason(), "Unavailable");
    let begun = world.clock.0.load(Ordering::SeqCst);
    let before = world.count("POST", "/fs/read");
    assert_eq!(before, 5);
    // Ten minutes, one caller each second.
    while world.clock.0.fetch_add(1000, Ordering::SeqCst) < begun + 600_000 {
        assert_eq!(durable.read_file("a", 1).await.unwrap_err().reason(), "Unavailable");
    }
    let probes = world.count("POST", "/fs/read") - before;
    assert!((1..=20).contains(&probes), "{probes} probes");
}

#[tokio::test]
async fn a_resume_that_finds_no_snapshot_says_so_and_creates_nothing() {
    let (world, durable) = world_with_box().await;
    let snapshot = durable.stop().await.unwrap().snapshot.unwrap();
    world.client.persistent().delete_snapshot(&snapshot.id).await.unwrap();
    let error = durable.run(&counted()).await.unwrap_err();
    assert!(matches!(&error, Error::Refused { status: 410, code: Some(code), .. } if code == "snapshot_not_found"));
    assert_eq!((world.double().running(), world.count("GET", "resume=true")), (0, 1));
}

#[tokio::test]
async fn a_vm_that_still_stops_is_resumed_and_the_command_runs_once() {
    let (world, durable) = world_with_box().await;
    for code in ["sandbox_stopping", "sandbox_snapshotting"] {
        world.double().script(Fault::once("POST", "/cmd", status(422, json!({"error": {"code": code}}), None)));
        durable.run(&counted()).await.unwrap().collect().await.unwrap();
    }
    world.double().script(Fault::once("POST", "/cmd", status(422, json!({"error": {"code": "other"}}), None)));
    assert!(durable.run(&counted()).await.unwrap_err().is_status(422));
    assert_eq!((runs(&durable).await.as_str(), world.count("GET", "resume=true")), ("run\nrun\n", 2));
}

#[tokio::test]
async fn a_quota_is_a_rate_limit_and_leaves_nothing_behind() {
    let credentials = Credentials::token(TOKEN.into(), "team_double", "prj_double");
    let world = World::with(Options { running: 0, ..Options::default() }, credentials).await;
    assert_eq!(world.client.persistent().create(&named()).await.unwrap_err().reason(), "RateLimited");
    assert!(world.client.persistent().get("box", false).await.unwrap_err().is_status(404));
}

#[tokio::test]
async fn a_wrong_token_is_refused_and_printed_nowhere() {
    let world = World::new().await;
    let credentials = Credentials::token("stolen-token".into(), "team_double", "prj_double");
    let client = builder(&world.running, credentials, &world.clock).build().unwrap();
    let echo = json!({"error": {"code": "forbidden", "message": "no rights for stolen-token"}});
    world.double().script(Fault::once("GET", "/v2/sandboxes", status(403, echo, None)));
    for _ in 0..2 {
        let error = client.persistent().get("box", false).await.unwrap_err();
        assert!(error.is_status(403));
        assert!(!format!("{error} {error:?} {client:?}").contains("stolen-token"));
    }
    let foreign = Credentials::token(TOKEN.into(), "team_other", "prj_double");
    let client = builder(&world.running, foreign, &world.clock).build().unwrap();
    assert!(client.persistent().get("box", false).await.unwrap_err().is_status(403));
}

fn oidc(expires: u64) -> String {
    let claims = json!({"owner_id": "team_double", "project_id": "prj_double", "exp": expires}).to_string();
    format!("e30.{}.c2ln", base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims))
}

#[tokio::test]
async fn an_oidc_token_is_read_again_before_it_expires_and_once_after_a_401() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    let (old, new, newest) = (oidc(1000), oidc(2000), oidc(3000));
    std::fs::write(&path, &old).unwrap();
    let world = World::with(Options { token: old, ..Options::default() }, Credentials::OidcFile(path.clone())).await;
    let list = async || world.client.stable().list(1, None).await.map(|page| page.items.len());
    assert_eq!(list().await.unwrap(), 0);
    // 299 seconds before it expires, the file is read.
    std::fs::write(&path, &new).unwrap();
    world.double().rotate_token(&new);
    world.clock.0.store(701_000, Ordering::SeqCst);
    assert_eq!(list().await.unwrap(), 0);
    // The token in use looks fresh, but the service says 401.
    std::fs::write(&path, &newest).unwrap();
    world.double().rotate_token(&newest);
    world.double().script(Fault::once("GET", "/v1/sandboxes", status(401, Value::Null, None)));
    assert_eq!(list().await.unwrap(), 0);
    world.double().script(Fault::times(2, "GET", "/v1/sandboxes", status(401, Value::Null, None)));
    assert!(list().await.unwrap_err().is_status(401));
    world.no_rule_was_broken();
}
