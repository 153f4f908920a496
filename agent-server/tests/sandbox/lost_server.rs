//! A server that is killed in the middle of commands leaves nothing behind.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use agent_server::sandbox::Sandbox;

use crate::place::{Mode, PATIENCE, Place, request, runs, seconds, until};

const MODE: &str = "LOST_SERVER_MODE";
const SLEEPS: &str = "LOST_SERVER_SLEEPS";
const READY: &str = "all commands run";

/// The killed process: this test program once more.
#[tokio::test]
#[ignore = "started by the tests below with the variables that it needs"]
async fn inside() {
    let word = std::env::var(MODE).unwrap();
    let mode =
        [Mode::Direct, Mode::Landlock, Mode::Bubblewrap].into_iter().find(|mode| format!("{mode:?}") == word).unwrap();
    let sleeps: Vec<String> = std::env::var(SLEEPS).unwrap().split(' ').map(str::to_owned).collect();
    let place = Place::new();
    let sandbox = place.sandbox(mode).await;
    // Ignores the end, left its group, was orphaned, left its session and its group twice over; and one in the foreground.
    let command = format!(
        "(trap '' TERM HUP; exec sleep {}) & setsid sleep {} & (sleep {} &) ; \
         setsid sh -c 'trap \"\" TERM; setsid sh -c \"sleep {}; :\" & wait' & sleep {}",
        sleeps[0], sleeps[1], sleeps[2], sleeps[3], sleeps[4]
    );
    let _events = sandbox.exec(request(&command)).await.unwrap();
    until("all commands run", || sleeps.iter().all(|argument| runs(argument))).await;
    eprintln!("{READY}");
    tokio::time::sleep(PATIENCE).await;
}

async fn nothing_outlives_a_killed_server(mode: Mode) {
    let sleeps = [86521, 86522, 86523, 86524, 86525].map(|number| seconds(number + mode as u32 * 10));
    let mut server = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "lost_server::inside", "--ignored", "--nocapture"])
        .env(MODE, format!("{mode:?}"))
        .env(SLEEPS, sleeps.join(" "))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(server.stderr.take().unwrap()).lines() {
        said.push(line.unwrap());
        if said.last().is_some_and(|line| line == READY) {
            break;
        }
    }
    assert_eq!(said.last().map(String::as_str), Some(READY), "{said:?}");
    server.kill().unwrap();
    server.wait().unwrap();
    until("everything is gone", || !sleeps.iter().any(|argument| runs(argument))).await;
}

#[tokio::test]
async fn nothing_outlives_a_killed_server_in_direct_mode() {
    nothing_outlives_a_killed_server(Mode::Direct).await;
}

#[tokio::test]
async fn nothing_outlives_a_killed_server_in_landlock_mode() {
    nothing_outlives_a_killed_server(Mode::Landlock).await;
}

#[tokio::test]
async fn nothing_outlives_a_killed_server_in_bubblewrap_mode() {
    nothing_outlives_a_killed_server(Mode::Bubblewrap).await;
}
