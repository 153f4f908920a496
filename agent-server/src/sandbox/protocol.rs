//! What the server and the supervisor of one command say to each other.
//!
//! Owns the supervisor's orders, the two message directions on its standard input, which is a socket pair, and the passing
//! of descriptors over sockets. Must not know how either side acts on a message.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use super::limits::CommandLimits;
use super::process_tree::Usage;
use super::restrictions::Restrictions;

/// First argument that turns the server's binary into the supervisor of one command.
pub const SUBCOMMAND: &str = "sandbox-exec";

/// Longest command text. The kernel takes at most 128 KiB for one argument, its final NUL included (`MAX_ARG_STRLEN`).
pub const MAX_COMMAND_BYTES: usize = 128 * 1024 - 1;
/// Largest orders: a command and an environment together are at most 2 MiB (a quarter of the usual stack), and JSON writes
/// a byte in at most six.
const MAX_ORDERS_BYTES: usize = 12 << 20;
/// Descriptors that travel with one message: socket, output, errors of a command.
pub const MAX_DESCRIPTORS: usize = 3;
/// Before the orders: their length.
type Length = [u8; 4];

/// Everything the supervisor needs. They come over its standard input: an argument could be read by every process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// Absolute path of bash.
    pub shell: PathBuf,
    /// What the command must not have.
    pub restrictions: Restrictions,
    /// Limits of the tree.
    pub limits: CommandLimits,
    /// Text for `bash -c`.
    pub command: String,
    /// All variables of the command.
    pub environment: BTreeMap<String, String>,
    /// Working directory; the supervisor's own when absent.
    pub directory: Option<PathBuf>,
}

/// The orders in the form in which they travel.
pub struct OrderMessage {
    length: Length,
    body: Vec<u8>,
}

impl OrderMessage {
    /// Orders as bytes; the error is a sentence for the caller of the command.
    pub fn new(orders: &Orders) -> Result<Self, String> {
        let body =
            serde_json::to_vec(orders).map_err(|_| "a path of the sandbox's settings is not UTF-8".to_owned())?;
        let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= MAX_ORDERS_BYTES);
        let length = length.ok_or("the command and its environment are too long")?;
        Ok(Self { length: length.to_le_bytes(), body })
    }

    /// Sends the head, with the table of processes for a supervisor that has none; the body is to be written after it.
    pub fn send_head(&self, socket: impl AsFd, table: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let descriptors: Vec<BorrowedFd<'_>> = table.into_iter().collect();
        let sent = send(socket, &self.length, &descriptors)?;
        if sent == self.length.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// What follows the head.
    pub fn body(&self) -> &[u8] {
        &self.body
    }
}

/// Waits for the orders, and for the table of processes if one comes with them.
pub fn receive_orders(mut socket: impl AsFd + Read) -> io::Result<(Orders, Option<OwnedFd>)> {
    let mut length = Length::default();
    let (received, descriptors) = receive(&socket, &mut length)?;
    let size = u32::from_le_bytes(length) as usize;
    if received != length.len() || size > MAX_ORDERS_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; size];
    socket.read_exact(&mut body)?;
    Ok((serde_json::from_slice(&body)?, descriptors.into_iter().next()))
}

/// Sends bytes with descriptors, all of them or an error.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and the descriptors that came with them. No bytes mean the end of the stream.
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    Ok((received.bytes, descriptors))
}

/// Server to supervisor, one byte each: end the tree, with time for its handlers of TERM. The end of the stream means that
/// the server is gone, and the same is done.
pub const END_TREE: u8 = b'E';
/// Server to supervisor: end the tree at once, because it grows.
pub const KILL_TREE: u8 = b'K';

/// Supervisor to server, one JSON document per line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Report {
    /// The shell runs.
    Started,
    /// The shell could not be started; the supervisor exits.
    Failed(String),
    /// What the tree uses now; sent when it has changed.
    Usage(Usage),
    /// A limit was passed; the tree is being ended.
    LimitExceeded(String),
    /// The shell is gone.
    ShellEnded {
        /// How.
        status: ShellStatus,
        /// Whether other processes of the tree still run.
        others_run: bool,
    },
    /// Nothing of the tree runs any more; the supervisor exits.
    TreeEnded,
    /// This many processes did not go although they were killed; the supervisor gives up and exits.
    TreeStuck(usize),
}

impl Report {
    /// The report as a line, its end included.
    pub fn line(&self) -> Vec<u8> {
        // A report holds numbers and text only, which JSON can always write.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// How the shell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ShellStatus {
    /// By itself.
    Exited(i32),
    /// By a signal.
    Signaled(i32),
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_report_survives_its_line() {
        let reports = [
            Report::Started,
            Report::Failed("no such file\nor directory".into()),
            Report::ShellEnded { status: ShellStatus::Signaled(9), others_run: true },
            Report::TreeStuck(3),
        ];
        for report in reports {
            let line = String::from_utf8(report.line()).unwrap();
            assert_eq!(line.find('\n'), Some(line.len() - 1), "{line}");
            assert_eq!(serde_json::from_str::<Report>(&line).unwrap(), report);
        }
    }

    #[test]
    fn orders_arrive_whole_with_the_table_and_without_what_follows() {
        let orders = Orders {
            shell: "/bin/bash".into(),
            restrictions: Restrictions::default(),
            limits: CommandLimits { processes: 1, memory_bytes: None, file_size_bytes: 1, output_bytes: 1 },
            command: "echo 'a\nb'".repeat(1000),
            environment: BTreeMap::from([("A".into(), "b".into())]),
            directory: Some("/workspace/a b".into()),
        };
        let message = OrderMessage::new(&orders).unwrap();
        for table in [None, Some(std::fs::File::open("/proc").unwrap())] {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            message.send_head(&ours, table.as_ref().map(AsFd::as_fd)).unwrap();
            ours.write_all(message.body()).unwrap();
            ours.write_all(&[END_TREE]).unwrap();
            let (received, descriptor) = receive_orders(&theirs).unwrap();
            assert_eq!((received, descriptor.is_some()), (orders.clone(), table.is_some()));
            let mut next = [0];
            theirs.read_exact(&mut next).unwrap();
            assert_eq!(next, [END_TREE]);
        }
    }
}
