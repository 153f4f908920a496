//! The static token of a server outside a cluster.
//!
//! Owns the constant-time comparison and the making of the server's own token.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use super::polled_file::PolledFile;
use super::{AuthError, Principal};

/// Compares by HMAC under a key made at start: `ring` verifies tags in constant time, and the length is hidden too.
pub struct StaticToken {
    file: PolledFile,
    expected: RwLock<Result<hmac::Tag, String>>,
    key: hmac::Key,
    principal: Arc<Principal>,
}

impl StaticToken {
    /// Reads the file at the first use.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .expect("the system gives random bytes after it has booted");
        Self {
            file: PolledFile::new(path.as_ref()),
            expected: RwLock::new(Err("not read yet".into())),
            key,
            principal: Arc::new(Principal { subject: "static".into(), user: true, lifecycle: true }),
        }
    }

    /// Compares a presented token with the file's content without surrounding white space.
    pub fn verify(&self, token: &str) -> Result<Arc<Principal>, AuthError> {
        self.file.changed(|content| {
            let tag = content.and_then(|bytes| match bytes.trim_ascii() {
                [] => Err("empty".into()),
                token => Ok(hmac::sign(&self.key, token)),
            });
            if let Err(reason) = &tag {
                tracing::error!(%reason, "the static token file is unusable; static tokens are refused");
            }
            *self.expected.write().unwrap_or_else(std::sync::PoisonError::into_inner) = tag;
        });
        let expected = self.expected.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        match &*expected {
            Ok(tag) if hmac::verify(&self.key, token.as_bytes(), tag.as_ref()).is_ok() => Ok(self.principal.clone()),
            Ok(_) => Err(AuthError::Invalid("the token is not the server's token".into())),
            Err(reason) => Err(AuthError::Invalid(format!("the server's token file is unusable: {reason}"))),
        }
    }
}

/// Makes a token file with 256 random bits, mode 0600, unless it exists; returns the token.
pub fn ensure_generated(path: &Path) -> std::io::Result<String> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut bytes = [0_u8; 32];
    SystemRandom::new().fill(&mut bytes).map_err(|_| std::io::Error::other("no random bytes"))?;
    let token = URL_SAFE_NO_PAD.encode(bytes);
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(mut file) => {
            file.write_all(token.as_bytes())?;
            file.sync_all()?;
            Ok(token)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            let existing = std::fs::read_to_string(path)?.trim().to_string();
            if existing.is_empty() {
                // A crash between creation and writing: nobody knows a token of it, so it may be made anew.
                std::fs::write(path, &token)?;
                return Ok(token);
            }
            Ok(existing)
        }
        Err(error) => Err(error),
    }
}
