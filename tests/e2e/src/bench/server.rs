//! Figures of the agent server alone: start, memory, file routes under load, delay added to the model's own stream.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures::StreamExt;
use reqwest::Client;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::{Figure, Goal, keep, milliseconds, resident_mebibytes};

/// Token of the server under test.
pub const TOKEN: &str = "bench-token-of-thirty-two-characters";
/// Connections of the load runs, as the goal is stated.
const CONNECTIONS: &str = "32";
/// Long enough to pass warm-up, short enough that three runs of two routes take 30 s.
const LOAD_SECONDS: &str = "5";
const LOAD_RUNS: usize = 3;
const STARTS: usize = 20;
const CHATS: usize = 200;
/// Turns of each session of the chat bench.
const TURNS: usize = 10;

/// A running agent server with files and a token of its own.
pub struct Server {
    /// `http://127.0.0.1:PORT`.
    pub base_url: String,
    /// Process id.
    pub pid: u32,
    /// From process start to the first 200 of `/health`.
    pub started_in: Duration,
    /// From process start to the first 200 of `/ready`.
    pub ready_in: Duration,
    /// Folder of the workspace.
    pub root: PathBuf,
    _child: Child,
    _folder: tempfile::TempDir,
}

impl Server {
    /// Starts the binary on a fresh folder with twelve small files, against a model service.
    pub async fn start(binary: &Path, client: &Client, model_url: &str) -> anyhow::Result<Self> {
        Self::start_with(binary, client, model_url, |_| Ok(())).await
    }

    /// As [`Server::start`], over a state folder that `prepare` has filled.
    pub async fn start_with(
        binary: &Path,
        client: &Client,
        model_url: &str,
        prepare: impl FnOnce(&Path) -> anyhow::Result<()>,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (root, state) = (folder.path().join("workspace"), folder.path().join("state"));
        std::fs::create_dir_all(&state)?;
        prepare(&state)?;
        std::fs::create_dir_all(&root)?;
        for index in 0..12 {
            std::fs::write(root.join(format!("file-{index}.txt")), "twenty bytes of text")?;
        }
        std::fs::write(folder.path().join("token"), TOKEN)?;
        std::fs::write(folder.path().join("key"), "bench-key")?;
        let begin = Instant::now();
        let mut child = Command::new(binary)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("BORING_AGENT_MODE", "direct")
            .env("BORING_AGENT_WORKSPACE_ROOT", &root)
            .env("BORING_AGENT_STATE_DIR", &state)
            .env("BORING_AGENT_TOKEN_FILE", folder.path().join("token"))
            .env("BORING_AGENT_MODEL_PROVIDER", "anthropic")
            .env("BORING_AGENT_MODEL", "scripted-model")
            .env("BORING_AGENT_MODEL_BASE_URL", model_url)
            .env("ANTHROPIC_API_KEY_FILE", folder.path().join("key"))
            .env("BORING_AGENT_PORT", "0")
            .env("BORING_AGENT_METRICS_PORT", "0")
            .env("RUST_LOG", "warn")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", binary.display()))?;
        let pid = child.id().context("the server ended at once")?;
        let mut lines = BufReader::new(child.stdout.take().context("no standard output")?).lines();
        let line =
            tokio::time::timeout(Duration::from_secs(10), lines.next_line()).await??.context("the server ended")?;
        let base_url =
            line.strip_prefix("listening on ").with_context(|| format!("unexpected line {line:?}"))?.to_owned();
        until_ok(client, &format!("{base_url}/health"), begin).await?;
        let started_in = begin.elapsed();
        until_ok(client, &format!("{base_url}/ready"), begin).await?;
        let ready_in = begin.elapsed();
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { base_url, pid, started_in, ready_in, root, _child: child, _folder: folder })
    }
}

/// Asks without pause until a 200 comes.
async fn until_ok(client: &Client, url: &str, begin: Instant) -> anyhow::Result<()> {
    while !client.get(url).send().await.is_ok_and(|response| response.status() == 200) {
        if begin.elapsed() > Duration::from_secs(10) {
            bail!("no 200 from {url} within 10 s");
        }
    }
    Ok(())
}

/// Requests per second and p99 in milliseconds, measured by `wrk`.
async fn load(url: &str) -> anyhow::Result<(f64, f64)> {
    let arguments = ["-t1", "-c", CONNECTIONS, "-d", LOAD_SECONDS, "--latency", "-H"];
    let output =
        Command::new("wrk").args(arguments).arg(format!("Authorization: Bearer {TOKEN}")).arg(url).output().await;
    let text = String::from_utf8(output.context("run wrk (Debian package wrk)")?.stdout)?;
    if text.contains("Non-2xx") || text.contains("Socket errors") {
        bail!("load on {url} met errors:\n{text}");
    }
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.trim().strip_prefix(name))
            .map(|value| value.trim().to_owned())
            .with_context(|| format!("no {name} in\n{text}"))
    };
    Ok((field("Requests/sec:")?.parse()?, wrk_milliseconds(&field("99%")?)?))
}

/// `1.23ms`, `456.00us` or `1.20s` in milliseconds.
pub(super) fn wrk_milliseconds(text: &str) -> anyhow::Result<f64> {
    let split = text.find(|character: char| character.is_alphabetic()).context("no unit")?;
    let value: f64 = text[..split].parse()?;
    Ok(match &text[split..] {
        "us" => value / 1000.0,
        "ms" => value,
        "s" => value * 1000.0,
        unit => bail!("unknown unit {unit}"),
    })
}

/// Time from sending to the first bytes that hold a marker.
async fn first_bytes_with(request: reqwest::RequestBuilder, marker: &str) -> anyhow::Result<Duration> {
    let begin = Instant::now();
    let response = request.send().await?.error_for_status()?;
    let mut body = response.bytes_stream();
    let (mut seen, mut first) = (String::new(), None);
    while let Some(bytes) = body.next().await {
        seen.push_str(&String::from_utf8_lossy(&bytes?));
        if first.is_none() && seen.contains(marker) {
            first = Some(begin.elapsed());
        }
    }
    first.with_context(|| format!("no {marker:?} in the stream"))
}

/// First text through the server minus first text straight from the model, by turns in one run: for the first turn of a
/// session, whose file is made and synced, and for later ones.
async fn added_delay(client: &Client, server: &Server, model_url: &str) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for index in 0..CHATS {
        let prompt = format!("Say something short, number {index}.");
        let direct = client
            .post(format!("{model_url}/v1/messages"))
            .header("x-api-key", "bench-key")
            .header("anthropic-version", "2023-06-01")
            .json(&json!({"model": "scripted-model", "max_tokens": 1000, "stream": true, "messages": [{"role": "user", "content": prompt}]}));
        let direct = first_bytes_with(direct, "text_delta").await?;
        let through = client
            .post(format!("{}/api/v1/agent/chat", server.base_url))
            .bearer_auth(TOKEN)
            .json(&json!({"sessionId": format!("bench-{}", index / TURNS), "message": prompt}));
        let through = first_bytes_with(through, "text-delta").await?;
        let added = milliseconds(through) - milliseconds(direct);
        if index % TURNS == 0 { first.push(added) } else { later.push(added) }
    }
    Ok((first, later))
}

/// Starts of the server, and its memory when it has nothing to do.
async fn starts(binary: &Path, client: &Client, model_url: &str) -> anyhow::Result<[Figure; 3]> {
    let (mut starts, mut readies, mut memory) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let server = Server::start(binary, client, model_url).await?;
        starts.push(milliseconds(server.started_in));
        readies.push(milliseconds(server.ready_in));
        // Memory is read when the start-up work has settled.
        tokio::time::sleep(Duration::from_millis(300)).await;
        memory.push(resident_mebibytes(server.pid)?);
    }
    Ok([
        Figure::new("agent server: start to first 200", "ms", starts, Goal::MedianAtMost(50.0)),
        Figure::new("agent server: start to ready", "ms", readies, Goal::MedianAtMost(1000.0)),
        Figure::new("agent server: idle memory", "MiB", memory, Goal::MaxAtMost(25.0)),
    ])
}

/// One file route under load: rate and tail.
async fn under_load(server: &Server, name: &str, path: &str) -> anyhow::Result<[Figure; 2]> {
    let (mut rates, mut tails) = (Vec::new(), Vec::new());
    for _ in 0..LOAD_RUNS {
        let (rate, tail) = load(&format!("{}{path}", server.base_url)).await?;
        rates.push(rate);
        tails.push(tail);
    }
    Ok([
        Figure::new(format!("{name}, {CONNECTIONS} connections"), "/s", rates, Goal::MedianAtLeast(30_000.0)),
        Figure::new(format!("{name}, p99"), "ms", tails, Goal::MedianAtMost(5.0)),
    ])
}

/// Runs all figures of the agent server.
pub async fn run(binary: &Path) -> anyhow::Result<Vec<Figure>> {
    let client = Client::builder().build()?;
    let model = fakes::model::ModelDouble::start().await?;
    let model_url = model.base_url.clone();
    let mut figures = Vec::new();
    keep(&mut figures, starts(binary, &client, &model_url).await?);

    let server = Server::start(binary, &client, &model_url).await?;
    keep(&mut figures, under_load(&server, "GET /files, 20 bytes", "/api/v1/files?path=file-0.txt").await?);
    keep(&mut figures, under_load(&server, "GET /tree, 12 entries", "/api/v1/tree").await?);
    let (first, later) = added_delay(&client, &server, &model_url).await?;
    let after = vec![resident_mebibytes(server.pid)?];
    keep(
        &mut figures,
        [
            Figure::new("chat: first text over the model's, first turn", "ms", first, Goal::MedianAtMost(1.0)),
            Figure::new("chat: first text over the model's, later turns", "ms", later, Goal::MedianAtMost(1.0)),
            Figure::new("agent server: memory after load and 200 chats", "MiB", after, Goal::MaxAtMost(60.0)),
        ],
    );
    drop(server);
    keep(&mut figures, super::large_tree::run(binary, &client, &model_url).await?);
    super::sessions::run(binary, &client, &model_url, &mut figures).await?;
    Ok(figures)
}

/// Path of a product binary: from the environment, else the release build of this workspace.
pub fn binary(variable: &str, name: &str) -> PathBuf {
    std::env::var_os(variable).map_or_else(
        || {
            let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
            target.join("release").join(name)
        },
        PathBuf::from,
    )
}
