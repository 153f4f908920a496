//! Figures of the gateway alone: requests per second and the time it adds, the memory of many open streams, and the wakes that
//! many requests to one sleeping workspace write.
//!
//! A real API server without nodes (KUBECONFIG), the real programs, and a double of an agent server that answers as fast as it
//! can in this process. Everything shares the machine: the load, the gateway and the double.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody, combinators::BoxBody};
use hyper::{Request, Response, body::Frame, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
};

use super::{Figure, Goal, milliseconds, resident_mebibytes, server::wrk_milliseconds};

/// Address of the double: loopback, told to the gateway as the range of pods.
const POD: Ipv4Addr = Ipv4Addr::new(127, 79, 0, 1);
const POD_PORT: u16 = 8787;
/// Connections of the load, as the goal is stated.
const CONNECTIONS: &str = "50";
const LOAD_SECONDS: &str = "5";
const LOAD_RUNS: usize = 3;
/// Open streams, as the goal is stated.
const STREAMS: usize = 5000;
/// Streams opened at once.
const AT_ONCE: usize = 50;
/// Requests at once to one sleeping workspace, as the goal is stated.
const HELD: usize = 500;
const START_LIMIT: Duration = Duration::from_secs(60);

type Body = BoxBody<Bytes, Infallible>;

/// Runs all figures of the gateway with the program `operator`.
pub async fn run(operator: &Path) -> anyhow::Result<Vec<Figure>> {
    let pod = SocketAddr::from((POD, POD_PORT));
    let listener = TcpListener::bind(pod).await.context("the double's address")?;
    tokio::spawn(double(listener));
    prepare(operator).await?;
    let token =
        kubectl(&["create", "token", "alice", "-n", "bench", "--audience", "agents.boring.dev/gateway"]).await?;
    let gateway = Gateway::start(operator).await?;
    let through = format!("http://{}/w/bench/api/small", gateway.address);
    until_served(&through, &token).await?;

    let (mut rates, mut added, mut direct_rates) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..LOAD_RUNS {
        let (direct_rate, direct) = load(&format!("http://{pod}/small"), &token).await?;
        let (rate, with_gateway) = load(&through, &token).await?;
        direct_rates.push(direct_rate);
        rates.push(rate);
        added.push(with_gateway - direct);
    }
    let streams = open_streams(gateway.address, &token).await?;
    let memory = vec![resident_mebibytes(gateway.pid)?];
    drop(streams);
    let wakes = vec![wakes_of_many(&gateway, &token).await?];
    Ok(vec![
        Figure::new("the double alone, 50 connections", "/s", direct_rates, Goal::MedianAtLeast(15_000.0)),
        Figure::new("gateway: requests, 50 connections", "/s", rates, Goal::MedianAtLeast(15_000.0)),
        Figure::new("gateway: p50 over the double's, 50 connections", "ms", added, Goal::MedianAtMost(0.3)),
        Figure::new(format!("gateway: memory with {STREAMS} open streams"), "MiB", memory, Goal::MaxAtMost(100.0)),
        Figure::new(format!("gateway: wakes that {HELD} requests write"), "", wakes, Goal::MaxAtMost(1.0)),
    ])
}

/// Definitions, keys as the operator makes them, a person, and a workspace whose pod is the double.
async fn prepare(operator: &Path) -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let crds = root.join("crds").display().to_string();
    kubectl(&["apply", "--server-side", "-f", &crds]).await?;
    kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "crd/agentworkspaces.agents.boring.dev"]).await?;
    for namespace in ["agent-workspace-system", "bench"] {
        kubectl(&["create", "namespace", namespace]).await?;
    }
    let mut controller = Command::new(operator)
        .args(["controller", "--agent-image", "none", "--leader-election", "false", "--listen", "127.0.0.1:0"])
        .env("RUST_LOG", "error")
        .kill_on_drop(true)
        .spawn()?;
    let began = Instant::now();
    let keys = ["get", "secret", "agent-workspace-gateway-keys", "-n", "agent-workspace-system"];
    while kubectl(&keys).await.is_err() {
        ensure!(began.elapsed() < START_LIMIT, "the operator made no keys");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    controller.kill().await?;
    kubectl(&["create", "serviceaccount", "alice", "-n", "bench"]).await?;
    workspace("api", "Always", &running(0)).await
}

/// A workspace of alice with a status that no operator writes here.
async fn workspace(name: &str, run_policy: &str, status: &Value) -> anyhow::Result<()> {
    let workspace = json!({
        "apiVersion": "agents.boring.dev/v1alpha1", "kind": "AgentWorkspace",
        "metadata": {"name": name, "namespace": "bench"},
        "spec": {"runPolicy": run_policy, "owner": {"user": "system:serviceaccount:bench:alice"}},
    });
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), workspace.to_string())?;
    kubectl(&["create", "-f", &file.path().display().to_string()]).await?;
    write_status(name, status).await
}

async fn write_status(name: &str, status: &Value) -> anyhow::Result<()> {
    let patch = json!({ "status": status }).to_string();
    kubectl(&["patch", "aw", name, "-n", "bench", "--subresource=status", "--type=merge", "-p", &patch]).await?;
    Ok(())
}

/// The status of a workspace whose pod is the double.
fn running(settled: i64) -> Value {
    json!({"phase": "Running", "settledTransition": settled, "pod": {"name": "agent", "uid": "pod-1", "ip": POD}})
}

/// Many requests at once for a sleeping workspace, which starts when all of them wait: how often its wake was written.
async fn wakes_of_many(gateway: &Gateway, token: &str) -> anyhow::Result<f64> {
    workspace("sleeper", "OnDemand", &json!({"phase": "Sleeping", "settledTransition": 0})).await?;
    let client = reqwest::Client::builder().no_proxy().build()?;
    let url = format!("http://{}/w/bench/sleeper/small", gateway.address);
    let ask = |wake: &'static str| client.get(&url).bearer_auth(token).header("x-workspace-wake", wake).send();
    let began = Instant::now();
    while ask("0").await?.status() != 503 {
        ensure!(began.elapsed() < START_LIMIT, "the gateway never saw the sleeping workspace");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let requests = futures::future::try_join_all((0..HELD).map(|_| ask("1")));
    let start = async {
        let waiting = format!("agent_workspace_gateway_held_requests {HELD}");
        let metrics = format!("http://{}/metrics", gateway.health);
        let began = Instant::now();
        while !client.get(&metrics).send().await?.text().await?.lines().any(|line| line == waiting) {
            ensure!(began.elapsed() < START_LIMIT, "not all of {HELD} requests wait");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        write_status("sleeper", &running(1)).await
    };
    let (answers, ()) = tokio::try_join!(async { Ok(requests.await?) }, start)?;
    let served = answers.iter().filter(|answer| answer.status() == 200).count();
    ensure!(served == HELD, "{served} of {HELD} requests were served");
    // Each write raises the counter, and with it the generation.
    let generation = ["get", "agentworkspacewakes", "sleeper", "-n", "bench", "-o", "jsonpath={.metadata.generation}"];
    Ok(kubectl(&generation).await?.parse()?)
}

async fn kubectl(arguments: &[&str]) -> anyhow::Result<String> {
    let program = std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into());
    let output = Command::new(program).args(arguments).output().await.context("run kubectl")?;
    ensure!(output.status.success(), "kubectl {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// A running gateway; ends when dropped.
struct Gateway {
    address: SocketAddr,
    health: SocketAddr,
    pid: u32,
    _child: Child,
}

impl Gateway {
    /// With the access log on, as it is by default; its lines go nowhere.
    async fn start(operator: &Path) -> anyhow::Result<Self> {
        let [address, health] = [free_address().await?, free_address().await?];
        let child = Command::new(operator)
            .args(["gateway", "--pod-cidrs", "127.79.0.0/16", "--listen"])
            .arg(address.to_string())
            .arg("--health-listen")
            .arg(health.to_string())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", operator.display()))?;
        let pid = child.id().context("the gateway ended at once")?;
        Ok(Self { address, health, pid, _child: child })
    }
}

/// An address that is free now.
async fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?)
}

async fn until_served(url: &str, token: &str) -> anyhow::Result<()> {
    let client = reqwest::Client::builder().no_proxy().build()?;
    let began = Instant::now();
    loop {
        let answer = client.get(url).bearer_auth(token).send().await;
        if answer.is_ok_and(|answer| answer.status() == 200) {
            return Ok(());
        }
        ensure!(began.elapsed() < START_LIMIT, "no 200 from {url}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Requests per second and median in milliseconds, measured by `wrk`.
async fn load(url: &str, token: &str) -> anyhow::Result<(f64, f64)> {
    let arguments = ["-t1", "-c", CONNECTIONS, "-d", LOAD_SECONDS, "--latency", "-H"];
    let output =
        Command::new("wrk").args(arguments).arg(format!("Authorization: Bearer {token}")).arg(url).output().await;
    let text = String::from_utf8(output.context("run wrk (Debian package wrk)")?.stdout)?;
    if text.contains("Non-2xx") || text.contains("Socket errors") {
        bail!("load on {url} met errors:\n{text}");
    }
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
        line.map(|value| value.trim().to_owned()).with_context(|| format!("no {name} in\n{text}"))
    };
    Ok((field("Requests/sec:")?.parse()?, wrk_milliseconds(&field("50%")?)?))
}

/// Opens the streams and waits for the first event of each.
async fn open_streams(gateway: SocketAddr, token: &str) -> anyhow::Result<Vec<TcpStream>> {
    let began = Instant::now();
    let opened = stream::iter(0..STREAMS).map(|_| open_stream(gateway, token)).buffer_unordered(AT_ONCE);
    let streams: Vec<_> = opened.collect().await;
    let streams = streams.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    eprintln!("{STREAMS} streams opened in {:.0} ms", milliseconds(began.elapsed()));
    Ok(streams)
}

async fn open_stream(gateway: SocketAddr, token: &str) -> anyhow::Result<TcpStream> {
    let mut stream = TcpStream::connect(gateway).await?;
    let request = format!("GET /w/bench/api/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while !head.windows(7).any(|window| window == b"data: 1") {
        let read = tokio::time::timeout(START_LIMIT, stream.read(&mut piece)).await??;
        ensure!(read > 0 && head.len() < 8192, "no event but {}", String::from_utf8_lossy(&head));
        head.extend_from_slice(&piece[..read]);
    }
    Ok(stream)
}

async fn double(listener: TcpListener) {
    while let Ok((stream, _)) = listener.accept().await {
        // A connection without delay is all that is wanted of this; one that is gone already fails below.
        let _ = stream.set_nodelay(true);
        tokio::spawn(async move {
            let service = service_fn(|request| async move { Ok::<_, Infallible>(answer(&request)) });
            // Ends with the caller.
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn answer<B>(request: &Request<B>) -> Response<Body> {
    let body: Body = if request.uri().path() == "/events" {
        let first = stream::iter([Ok(Frame::data(Bytes::from_static(b"data: 1\n\n")))]);
        BodyExt::boxed(StreamBody::new(first.chain(stream::pending())))
    } else {
        BodyExt::boxed(http_body_util::Full::new(Bytes::from_static(b"{\"content\":\"twenty bytes of text\"}")))
    };
    let mut response = Response::new(body);
    response.headers_mut().insert("x-boring-agent-pod", hyper::header::HeaderValue::from_static("pod-1"));
    response
}
