//! A server process in a fresh folder, and a plain HTTP client.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Everything that the server does must take less than this.
pub const LIMIT: Duration = Duration::from_secs(20);

pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
    pub token: String,
    pub dir: tempfile::TempDir,
    /// Held open, so that the server can write.
    _output: BufReader<ChildStdout>,
}

/// A command with nothing of the caller's environment but what a process needs.
pub fn command(dir: &Path) -> Command {
    std::fs::create_dir_all(dir.join("work")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent-server"));
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", dir.join("home"))
        .env("BORING_AGENT_STATE_DIR", dir.join("state"))
        .arg("--port=0")
        .arg(dir.join("work"))
        .stdin(Stdio::null());
    command
}

impl Server {
    pub fn start(change: impl FnOnce(&mut Command)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut command = command(dir.path());
        change(&mut command);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let address = line.strip_prefix("listening on http://").unwrap_or_else(|| panic!("first line {line:?}"));
        let address = address.trim().parse().unwrap();
        line.clear();
        output.read_line(&mut line).unwrap();
        let token = line.split("#token=").nth(1).unwrap_or_else(|| panic!("second line {line:?}")).trim().to_string();
        Self { child, address, token, dir, _output: output }
    }

    /// Starts and waits until the whole interface answers.
    pub fn start_ready(change: impl FnOnce(&mut Command)) -> Self {
        let server = Self::start(change);
        let until = Instant::now() + LIMIT;
        while server.get("/ready").0 != 200 {
            assert!(Instant::now() < until, "the server does not get ready");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// One request on a connection of its own; status, head and body.
    pub fn send(&self, method: &str, uri: &str, headers: &str, body: &str) -> (u16, String, String) {
        let mut stream = connect(self.address);
        let token = &self.token;
        let length = body.len();
        write!(
            stream,
            "{method} {uri} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\
             content-length: {length}\r\n{headers}\r\n{body}"
        )
        .unwrap();
        read_answer(&mut stream)
    }

    pub fn get(&self, uri: &str) -> (u16, String, String) {
        self.send("GET", uri, "", "")
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end, within the limit.
    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Has ended already in most cases.
        let _ended = self.child.kill();
        let _ended = self.child.wait();
    }
}

pub fn wait(child: &mut Child) -> ExitStatus {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < until, "the process does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, LIMIT).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Reads until the server closes.
pub fn read_answer(stream: &mut TcpStream) -> (u16, String, String) {
    let mut bytes = Vec::new();
    // A reset after the answer is as good as an end.
    let _reset = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, head.to_string(), body.to_string())
}
