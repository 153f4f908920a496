//! Start, configuration, signals.

use std::io::Read as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::binary::{LIMIT, Server, command, connect, read_answer, wait};

#[test]
fn the_first_line_says_where_it_listens_and_the_second_opens_it() {
    let server = Server::start_ready(|_| {});
    assert!(server.address.ip().is_loopback() && server.address.port() != 0);
    let (status, _, body) = server.get("/health");
    assert_eq!(status, 200, "{body}");
    assert_eq!(server.get("/api/v1/tree").0, 200);
    let kept = std::fs::read_to_string(server.dir.path().join("state/token")).unwrap();
    assert_eq!(kept.trim(), server.token);
}

#[test]
fn a_signal_ends_it_with_code_0_and_requests_in_progress_are_answered() {
    for signal in ["-TERM", "-INT"] {
        let mut server = Server::start_ready(|_| {});
        let mut stream = connect(server.address);
        let head = format!(
            "PUT /api/v1/files/raw?path=f HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\ncontent-length: 6\r\n\r\nhal",
            server.token
        );
        std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
        // The upload has begun when its temporary file is there, which is another than that of the storage probe.
        let until = Instant::now() + LIMIT;
        let is_upload = |name: &str| name.starts_with(".boring-agent-tmp-") && !name.contains("probe");
        let begun = || {
            let mut entries = std::fs::read_dir(server.dir.path().join("work")).unwrap();
            entries.any(|entry| is_upload(entry.unwrap().file_name().to_str().unwrap()))
        };
        while !begun() {
            assert!(Instant::now() < until, "the upload does not begin");
            std::thread::sleep(Duration::from_millis(5));
        }
        server.signal(signal);
        std::io::Write::write_all(&mut stream, b"ves").unwrap();
        assert_eq!(read_answer(&mut stream).0, 200);
        let started = Instant::now();
        assert_eq!(server.wait().code(), Some(0), "{signal}");
        assert!(started.elapsed() < Duration::from_secs(5));
        assert_eq!(std::fs::read(server.dir.path().join("work/f")).unwrap(), b"halves");
    }
}

#[test]
fn a_client_that_never_finishes_does_not_keep_it_from_ending_within_five_seconds() {
    let mut server = Server::start_ready(|_| {});
    let mut stream = connect(server.address);
    std::io::Write::write_all(&mut stream, b"GET /health HTTP/1.1\r\nhost:").unwrap();
    let _idle = connect(server.address);
    assert_eq!(server.get("/health").0, 200);
    let started = Instant::now();
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
    assert!(started.elapsed() < Duration::from_millis(5500), "{:?}", started.elapsed());
}

#[test]
fn an_open_event_stream_is_ended_whole_when_the_server_stops() {
    let mut server = Server::start_ready(|_| {});
    let mut stream = connect(server.address);
    let head = format!(
        "GET /api/v1/events?topics=fs,ui,sessions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
        server.token
    );
    std::io::Write::write_all(&mut stream, head.as_bytes()).unwrap();
    let mut seen = String::new();
    let mut piece = [0; 1024];
    while seen.matches("event: hello").count() < 3 {
        let count = stream.read(&mut piece).unwrap();
        assert_ne!(count, 0, "the stream ended: {seen}");
        seen.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    server.signal("-TERM");
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("0\r\n\r\n"), "{rest:?}");
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_configuration_that_does_not_validate_ends_with_78_and_names_every_fault() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = command(dir.path())
        .args(["--host", "0.0.0.0", "--mode", "acme"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(wait(&mut child).code(), Some(78));
    let (mut out, mut errors) = (String::new(), String::new());
    child.stdout.unwrap().read_to_string(&mut out).unwrap();
    child.stderr.unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!(out, "");
    assert!(errors.contains("--mode: `acme`") && errors.contains("--host: 0.0.0.0"), "{errors}");
    let mut unknown = command(dir.path()).arg("--prot=1").stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(wait(&mut unknown).code(), Some(78));
}

#[test]
fn a_taken_port_ends_with_1() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut taking = command(dir.path());
    taking.env("BORING_AGENT_METRICS_PORT", taken.local_addr().unwrap().port().to_string());
    let mut child = taking.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert_eq!(wait(&mut child).code(), Some(1));
}

#[test]
fn the_configuration_is_printed_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let output = command(dir.path()).arg("--print-config").env("ANTHROPIC_API_KEY", "sk-very-secret").output().unwrap();
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("[redacted]") && !text.contains("very-secret"), "{text}");
}

#[test]
fn metrics_have_a_port_of_their_own_without_token() {
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let server = Server::start_ready(|command| {
        command.env("BORING_AGENT_METRICS_PORT", port.to_string());
    });
    server.get("/api/v1/tree");
    let mut stream = connect(([127, 0, 0, 1], port).into());
    std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let (status, _, body) = read_answer(&mut stream);
    assert_eq!(status, 200);
    for family in ["agent_http_requests_total", "agent_http_connections", "agent_process_resident_memory_bytes"] {
        assert!(body.contains(family), "{family} in {body}");
    }
    assert_eq!(server.get("/metrics").0, 404, "not on the interface's port");
}

#[test]
fn a_volume_that_cannot_be_written_makes_it_unavailable_and_says_why() {
    // A folder that not even root can write: the kernel's own.
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("home")).unwrap();
    let server = Server::start(|command| {
        command.env("BORING_AGENT_WORKSPACE_ROOT", "/proc/sys/kernel");
        command.env_remove("HOME").env("HOME", dir.path().join("home"));
        // The folder argument would conflict.
        let program = command.get_program().to_owned();
        let mut other = std::process::Command::new(program);
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                other.env(name, value);
            }
        }
        other.env("BORING_AGENT_STATE_DIR", dir.path().join("state")).arg("--port=0");
        *command = other;
    });
    let until = Instant::now() + LIMIT;
    loop {
        let (status, _, body) = server.get("/ready");
        if body.contains("VolumeNotWritable") {
            assert_eq!(status, 503);
            assert!(body.contains("the workspace volume cannot be written"), "{body}");
            break;
        }
        assert!(Instant::now() < until, "{body}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_template_is_there_when_it_is_ready_and_libraries_that_cannot_be_had_keep_it_from_being_ready() {
    let dir = tempfile::tempdir().unwrap();
    let template = dir.path().join("template");
    std::fs::create_dir(&template).unwrap();
    std::fs::write(template.join("AGENTS.md"), "Be kind.\n").unwrap();
    std::fs::write(template.join("pip.conf"), "[global]\nno-index = true\n").unwrap();
    let server = Server::start_ready(|command| {
        command.env("BORING_AGENT_TEMPLATE_PATH", &template);
    });
    let (status, _, body) = server.get("/api/v1/files?path=AGENTS.md");
    assert!(status == 200 && body.contains("Be kind."), "{status} {body}");
    let mut server = Server::start(|command| {
        command.env("BORING_AGENT_TEMPLATE_PATH", &template).env("BORING_AGENT_PYTHON_PACKAGES", "no-such-library");
    });
    let until = Instant::now() + LIMIT * 6;
    let body = loop {
        let (status, _, body) = server.get("/ready");
        assert_eq!(status, 503, "{body}");
        if body.contains("ProvisioningFailed") {
            break body;
        }
        assert!(Instant::now() < until, "{body}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(body.contains("libraries: No matching distribution found for no-such-library"), "{body}");
    let (status, head, body) = server.get("/api/v1/tree");
    assert_eq!(status, 503);
    assert!(head.to_ascii_lowercase().contains("retry-after:") && body.contains("\"provisioning\""), "{head} {body}");
    server.signal("-TERM");
    assert_eq!(server.wait().code(), Some(0));
}
