//! Figures of a workspace with 100,000 files: search, pages of listings, and whether anything else has to wait.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::StreamExt;
use reqwest::Client;

use super::server::{Server, TOKEN};
use super::{Figure, Goal, milliseconds};

/// 100 folders of 1,000 files: the size in the goals, and a page of 1,000 entries in each folder.
const FOLDERS: usize = 100;
const FILES: usize = 1000;
const REQUESTS: usize = 30;
/// Searches and recursive listings at once while probes are timed: as many as the server runs.
const WALKERS: usize = 4;
const STALL_FOR: Duration = Duration::from_secs(5);

fn fill(root: &Path) -> anyhow::Result<()> {
    for folder in 0..FOLDERS {
        let folder = root.join(format!("folder-{folder:03}"));
        std::fs::create_dir(&folder)?;
        for file in 0..FILES {
            std::fs::write(folder.join(format!("file-{file:04}.txt")), "")?;
        }
    }
    Ok(())
}

/// Milliseconds of one request, body included.
async fn timed(client: &Client, url: &str) -> anyhow::Result<f64> {
    let begin = Instant::now();
    let response = client.get(url).bearer_auth(TOKEN).send().await?.error_for_status()?;
    response.bytes().await?;
    Ok(milliseconds(begin.elapsed()))
}

async fn samples(client: &Client, url: &str) -> anyhow::Result<Vec<f64>> {
    let mut values = Vec::with_capacity(REQUESTS);
    for _ in 0..REQUESTS {
        values.push(timed(client, url).await?);
    }
    Ok(values)
}

/// From the connection of the first reader of changes until it is told what is watched.
async fn first_look(client: &Client, base: &str) -> anyhow::Result<f64> {
    let begin = Instant::now();
    let url = format!("{base}/api/v1/fs/events");
    let mut body = client.get(url).bearer_auth(TOKEN).send().await?.error_for_status()?.bytes_stream();
    let mut seen = String::new();
    while !seen.contains("\"by\":") {
        seen.push_str(&String::from_utf8_lossy(&body.next().await.context("the stream ended")??));
    }
    Ok(milliseconds(begin.elapsed()))
}

/// Times of a probe and of a small file while the tree is walked as often at once as the server does.
async fn beside_walks(client: &Client, base: &str) -> anyhow::Result<Vec<f64>> {
    let search = format!("{base}/api/v1/files/search?q=nothing-has-this-name");
    let walkers: Vec<_> = (0..WALKERS)
        .map(|_| {
            let (client, search) = (client.clone(), search.clone());
            tokio::spawn(async move { while timed(&client, &search).await.is_ok() {} })
        })
        .collect();
    let (begin, mut values) = (Instant::now(), Vec::new());
    while begin.elapsed() < STALL_FOR {
        values.push(timed(client, &format!("{base}/health")).await?);
        values.push(timed(client, &format!("{base}/api/v1/files?path=file-0.txt")).await?);
    }
    walkers.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(values)
}

/// Runs the figures.
pub async fn run(binary: &Path, client: &Client, model_url: &str) -> anyhow::Result<Vec<Figure>> {
    let server = Server::start(binary, client, model_url).await?;
    fill(&server.root)?;
    let base = &server.base_url;
    let mut figures = vec![Figure::new(
        "100,000 files: until changes are watched",
        "ms",
        vec![first_look(client, base).await?],
        Goal::MaxAtMost(1000.0),
    )];
    for (name, path, goal) in [
        ("search by a word", "files/search?q=0999", Goal::MedianAtMost(300.0)),
        ("search by a glob", "files/search?q=**/*-0999.txt", Goal::MedianAtMost(300.0)),
        ("tree, page of 1,000 entries", "tree?path=folder-050", Goal::MedianAtMost(5.0)),
        ("tree, recursive page of 1,000", "tree?recursive=true", Goal::MedianAtMost(5.0)),
    ] {
        let values = samples(client, &format!("{base}/api/v1/{path}")).await?;
        figures.push(Figure::new(format!("100,000 files: {name}"), "ms", values, goal));
    }
    // A walk takes tens of milliseconds of a core; whoever asks for anything else meanwhile must not wait for it.
    let values = beside_walks(client, base).await?;
    figures.push(Figure::new(
        "100,000 files: small requests beside four walks",
        "ms",
        values,
        Goal::MedianAtMost(20.0),
    ));
    Ok(figures)
}
