//! A full and a read-only volume, each a real small file system in a mount namespace of the server's own.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::binary::{Server, connect, read_answer};

/// Whether this machine lets its users mount in namespaces of their own. Where it does not, these tests say so and end.
fn can_mount() -> bool {
    let works = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "true"])
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !works {
        eprintln!("not run: user namespaces are not permitted here");
    }
    works
}

/// A server whose workspace is a file system of 256 KiB.
fn on_small_volume() -> Server {
    Server::start_ready(|plain| {
        let work = plain.get_args().last().expect("the folder").to_owned();
        let script = "mount -t tmpfs -o size=256k tmpfs \"$0\" && exec \"$@\"";
        let mut inside = Command::new("unshare");
        inside.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]).arg(work);
        inside.arg(plain.get_program()).args(plain.get_args()).env_clear().stdin(Stdio::null());
        inside.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        *plain = inside;
    })
}

fn write(server: &Server, path: &str, content: &str) -> (u16, String) {
    let body = format!("{{\"path\":\"{path}\",\"createDirs\":true,\"content\":\"{content}\"}}");
    let (status, _, body) = server.send("POST", "/api/v1/files", "content-type: application/json\r\n", &body);
    (status, body)
}

#[test]
fn a_full_volume_refuses_what_does_not_fit_leaves_nothing_behind_and_takes_what_fits() {
    if !can_mount() {
        return;
    }
    let server = on_small_volume();
    assert_eq!(write(&server, "kept", "before").0, 200);
    let large = "x".repeat(1024 * 1024);
    let (status, body) = write(&server, "a/b/large", &large);
    assert!(status == 507 && body.contains("storage_full"), "{status} {body}");
    // The answer comes before the whole body was taken, so the client may see a reset instead of it.
    let mut stream = connect(server.address);
    let head = format!(
        "PUT /api/v1/files/raw?path=c/large&createDirs=true HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-length: {}\r\n\r\n",
        server.token,
        large.len()
    );
    let _early_answer = stream.write_all(format!("{head}{large}").as_bytes());
    let _early_end = stream.shutdown(std::net::Shutdown::Write);
    let (status, _, body) = read_answer(&mut stream);
    assert!(matches!(status, 0 | 507), "{status} {body}");
    let (status, body) = write(&server, "kept", &large);
    assert_eq!(status, 507, "{body}");
    let tree = server.get("/api/v1/tree?recursive=true").2;
    assert!(tree.contains("\"kept\"") && !tree.contains("\"a\"") && !tree.contains("\"c\""), "{tree}");
    assert!(server.get("/api/v1/files?path=kept").2.contains("\"before\""));
    assert_eq!(write(&server, "d/small", "fits").0, 200);
    assert_eq!(server.get("/ready").0, 200);
}

#[test]
fn a_volume_that_becomes_read_only_is_named_and_can_still_be_read() {
    if !can_mount() {
        return;
    }
    let server = on_small_volume();
    assert_eq!(write(&server, "kept", "before").0, 200);
    remount_read_only(server.child.id(), &server.dir.path().join("work"));
    let change = [write(&server, "new", "x"), write(&server, "a/b", "x"), {
        let (status, _, body) = server.send("DELETE", "/api/v1/files?path=kept", "", "");
        (status, body)
    }];
    for (status, body) in change {
        assert!(status == 503 && body.contains("volume_not_writable"), "{status} {body}");
    }
    assert!(server.get("/api/v1/files?path=kept").2.contains("\"before\""));
}

fn remount_read_only(server: u32, folder: &Path) {
    let status = Command::new("nsenter")
        .args(["--preserve-credentials", "--user", "--mount", "--target", &server.to_string()])
        .args(["mount", "-o", "remount,ro"])
        .arg(folder)
        .status()
        .unwrap();
    assert!(status.success());
}
