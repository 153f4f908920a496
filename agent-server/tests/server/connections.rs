//! Malformed input and many connections.

use std::io::Write as _;

use super::binary::{Server, connect, read_answer};

fn raw(server: &Server, bytes: &[u8]) -> (u16, String, String) {
    let mut stream = connect(server.address);
    // The server may answer and close before everything is sent.
    let _early_answer = stream.write_all(bytes);
    read_answer(&mut stream)
}

#[test]
fn malformed_requests_are_answered_and_the_server_stays_up() {
    let server = Server::start_ready(|_| {});
    let long_header = format!("GET /health HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(200_000));
    let many_headers = format!("GET /health HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(200));
    let long_path = format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "p".repeat(100_000));
    for (bytes, statuses) in [
        (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"[..], &[0, 400][..]),
        (b"GET\r\n\r\n", &[400]),
        (b"GET / HTTP/9.9\r\n\r\n", &[400, 505]),
        (b"GET /health HTTP/1.1\r\nno colon\r\n\r\n", &[400]),
        (b"POST /api/v1/dirs HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", &[400]),
        (b"POST /api/v1/dirs HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", &[400]),
        (long_header.as_bytes(), &[431, 400]),
        (many_headers.as_bytes(), &[431]),
        (long_path.as_bytes(), &[414, 431, 400]),
    ] {
        let (status, head, _) = raw(&server, bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        assert!(statuses.contains(&status), "{shown:?}: {head}");
        assert_eq!(server.get("/health").0, 200);
    }
    let close = b"GET /nope HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    assert!(raw(&server, close).2.contains("auth_required"));
}

#[test]
fn a_connection_serves_request_after_request() {
    let server = Server::start_ready(|_| {});
    let mut stream = connect(server.address);
    let one = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n".repeat(49);
    let last = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(format!("{one}{last}").as_bytes()).unwrap();
    let (status, head, rest) = read_answer(&mut stream);
    assert_eq!(status, 200);
    assert_eq!(format!("{head}{rest}").matches("HTTP/1.1 200 OK").count(), 50);
}

/// Two thousand here, so that the test's own descriptors suffice anywhere.
#[test]
fn thousands_of_idle_connections_leave_room_for_requests() {
    let server = Server::start_ready(|_| {});
    let mut idle = Vec::new();
    while idle.len() < 2000 {
        match std::net::TcpStream::connect(server.address) {
            Ok(mut stream) => {
                if idle.len() % 2 == 0 {
                    // Half of them have begun a request.
                    stream.write_all(b"GET /health HT").unwrap();
                }
                idle.push(stream);
            }
            Err(error) => {
                assert!(idle.len() > 400, "{} connections: {error}", idle.len());
                break;
            }
        }
    }
    // Room for the client's own descriptor.
    idle.truncate(idle.len().saturating_sub(20));
    for _ in 0..20 {
        assert_eq!(server.get("/health").0, 200);
        assert_eq!(server.get("/api/v1/tree").0, 200);
    }
}
