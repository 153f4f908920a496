//! Tests of both token kinds, with real keys and files.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

use super::signed::SignedTokenVerifier;
use super::{AuthError, Authenticator, Principal, bearer, ensure_generated};
use crate::config::{AuthenticationConfig, SignedTokens};

const NOW: u64 = 1_800_000_000;
const AUDIENCE: &str = "team/alice/uid-1/pod-1";

struct Signer {
    kid: &'static str,
    scope: &'static str,
    pkcs8: Vec<u8>,
    public: String,
}

impl Signer {
    fn new(kid: &'static str, scope: &'static str) -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("key").as_ref().to_vec();
        let pair = Ed25519KeyPair::from_pkcs8(&pkcs8).expect("key");
        let public = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        Self { kid, scope, pkcs8, public }
    }

    fn jwk(&self) -> Value {
        json!({"kty": "OKP", "crv": "Ed25519", "use": "sig", "alg": "EdDSA", "kid": self.kid, "x": self.public,
            "boring_scope": self.scope})
    }

    fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(self.kid.into());
        jsonwebtoken::encode(&header, claims, &EncodingKey::from_ed_der(&self.pkcs8)).expect("signed")
    }
}

fn claims(changes: Value) -> Value {
    let mut claims = json!({"iss": "agents.boring.dev/operator", "aud": AUDIENCE, "sub": "alice", "scope": "user",
        "iat": NOW, "nbf": NOW, "exp": NOW + 600});
    let Value::Object(changes) = changes else { unreachable!("an object") };
    for (name, value) in changes {
        claims[&name] = value;
    }
    claims
}

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("folder") }
    }

    fn keys(&self) -> PathBuf {
        self.dir.path().join("keys")
    }

    fn publish(&self, signers: &[&Signer]) {
        let keys: Vec<_> = signers.iter().map(|signer| signer.jwk()).collect();
        let next = self.dir.path().join("next");
        std::fs::write(&next, json!({ "keys": keys }).to_string()).expect("written");
        std::fs::rename(next, self.keys()).expect("swapped");
    }

    fn verifier(&self) -> SignedTokenVerifier {
        SignedTokenVerifier::new(&SignedTokens { keys_file: self.keys(), audience: AUDIENCE.into() })
    }
}

fn message(result: Result<std::sync::Arc<Principal>, AuthError>) -> String {
    result.expect_err("refused").to_string()
}

#[test]
fn a_good_user_token_names_its_subject_and_is_good_for_user_routes_only() {
    let (place, user) = (Place::new(), Signer::new("u1", "user"));
    place.publish(&[&user]);
    let verifier = place.verifier();
    let token = user.sign(&claims(json!({})));
    for _ in 0..2 {
        assert_eq!(
            *verifier.verify(&token, NOW + 5).expect("good"),
            Principal { subject: "alice".into(), user: true, lifecycle: false }
        );
    }
}

#[test]
fn a_lifecycle_token_is_good_for_lifecycle_routes_only() {
    let (place, operator) = (Place::new(), Signer::new("l1", "lifecycle"));
    place.publish(&[&operator]);
    let token = operator.sign(&claims(json!({"scope": "lifecycle", "sub": "system:operator"})));
    assert_eq!(
        *place.verifier().verify(&token, NOW).expect("good"),
        Principal { subject: "system:operator".into(), user: false, lifecycle: true }
    );
}

#[test]
fn a_stolen_key_of_one_scope_cannot_sign_the_other() {
    let (place, user, operator) = (Place::new(), Signer::new("u1", "user"), Signer::new("l1", "lifecycle"));
    place.publish(&[&user, &operator]);
    let verifier = place.verifier();
    for token in [user.sign(&claims(json!({"scope": "lifecycle"}))), operator.sign(&claims(json!({"scope": "user"})))] {
        assert_eq!(
            message(verifier.verify(&token, NOW)),
            "the token's scope is not the scope of the key that signed it"
        );
    }
}

#[test]
fn every_claim_that_does_not_fit_is_named() {
    let (place, user) = (Place::new(), Signer::new("u1", "user"));
    place.publish(&[&user]);
    let verifier = place.verifier();
    let cases = [
        (json!({"iss": "evil"}), "the token's issuer is not trusted"),
        (json!({"aud": "team/alice/uid-1/pod-0"}), "the token is for another workspace or an earlier pod"),
        (json!({"aud": [AUDIENCE]}), "the token's claims are not iss, aud, sub, scope, iat, nbf and exp as agreed"),
        (json!({"scope": "admin"}), "the token's claims are not iss, aud, sub, scope, iat, nbf and exp as agreed"),
        (json!({"exp": NOW - 31}), "the token expired 31 s ago by this server's clock"),
        (json!({"nbf": NOW + 90}), "the token is not valid yet: this server's clock is 90 s behind its issue"),
        (json!({"iat": NOW + 31}), "the token is not valid yet: this server's clock is 31 s behind its issue"),
    ];
    for (change, expected) in cases {
        assert_eq!(message(verifier.verify(&user.sign(&claims(change)), NOW)), expected);
    }
    for change in [json!({"exp": NOW - 30}), json!({"nbf": NOW + 30, "iat": NOW + 30})] {
        verifier.verify(&user.sign(&claims(change)), NOW).expect("within the leeway");
    }
}

#[test]
fn a_cached_token_still_expires() {
    let (place, user) = (Place::new(), Signer::new("u1", "user"));
    place.publish(&[&user]);
    let verifier = place.verifier();
    let token = user.sign(&claims(json!({})));
    verifier.verify(&token, NOW).expect("good");
    verifier.verify(&token, NOW + 630).expect("within the leeway");
    assert_eq!(message(verifier.verify(&token, NOW + 631)), "the token expired 31 s ago by this server's clock");
}

#[test]
fn foreign_signatures_algorithms_and_key_ids_are_refused() {
    let (place, user) = (Place::new(), Signer::new("u1", "user"));
    place.publish(&[&user]);
    let verifier = place.verifier();
    let impostor = Signer::new("u1", "user").sign(&claims(json!({})));
    assert_eq!(message(verifier.verify(&impostor, NOW)), "the token's signature is not good");
    let unknown = Signer::new("u9", "user").sign(&claims(json!({})));
    assert_eq!(message(verifier.verify(&unknown, NOW)), "the token is signed with a key this server does not know");
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("u1".into());
    // The public key as a shared secret: the classic confusion of algorithms.
    let secret = EncodingKey::from_secret(user.public.as_bytes());
    let confused = jsonwebtoken::encode(&header, &claims(json!({})), &secret).expect("signed");
    assert_eq!(message(verifier.verify(&confused, NOW)), "the token is not signed with EdDSA");
    let (header, payload) = (json!({"alg": "EdDSA", "kid": "u1", "crit": ["exp"]}), claims(json!({})));
    let signed = [header, payload].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let pair = Ed25519KeyPair::from_pkcs8(&user.pkcs8).expect("key");
    let extended = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(pair.sign(signed.as_bytes())));
    let refused = "the token demands an extension (`crit`), and none is known here";
    assert_eq!(message(verifier.verify(&extended, NOW)), refused);
    let none = format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), URL_SAFE_NO_PAD.encode("{}"));
    assert_eq!(message(verifier.verify(&none, NOW)), "the token is not a signed token");
    assert_eq!(message(verifier.verify(&"a.".repeat(9000), NOW)), "the token is too long");
}

#[test]
fn a_changed_key_file_is_seen_within_two_seconds_and_a_withdrawn_key_is_refused() {
    let (place, old, new) = (Place::new(), Signer::new("u1", "user"), Signer::new("u2", "user"));
    place.publish(&[&old]);
    let verifier = place.verifier();
    let (old_token, new_token) = (old.sign(&claims(json!({}))), new.sign(&claims(json!({}))));
    verifier.verify(&old_token, NOW).expect("good");
    place.publish(&[&new]);
    let published = Instant::now();
    while verifier.verify(&new_token, NOW).is_err() {
        assert!(published.elapsed() < Duration::from_secs(2), "the change was not seen");
        std::thread::yield_now();
    }
    assert_eq!(message(verifier.verify(&old_token, NOW)), "the token is signed with a key this server does not know");
}

#[test]
fn an_unusable_key_file_refuses_everyone_and_says_why() {
    let (place, user) = (Place::new(), Signer::new("u1", "user"));
    let token = user.sign(&claims(json!({})));
    assert_eq!(message(place.verifier().verify(&token, NOW)), "the server's key file is unusable: entity not found");
    for content in ["", "{}", r#"{"keys":[]}"#, r#"{"keys":[{"kty":"RSA","kid":"u1"}]}"#] {
        std::fs::write(place.keys(), content).expect("written");
        assert!(message(place.verifier().verify(&token, NOW)).starts_with("the server's key file is unusable: "));
    }
}

#[test]
fn the_static_token_is_compared_whole_and_read_without_white_space() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("token");
    std::fs::write(&path, " secret-token\n").expect("written");
    let config = AuthenticationConfig { signed: None, static_token_file: Some(path), generated: false };
    let authenticator = Authenticator::new(&config);
    let good = authenticator.authenticate(Some(b"bearer secret-token")).expect("good");
    assert_eq!(*good, Principal { subject: "static".into(), user: true, lifecycle: true });
    for wrong in ["secret-toke", "secret-token2", "Secret-token", "a.b.c"] {
        let value = format!("Bearer {wrong}");
        assert_eq!(
            authenticator.authenticate(Some(value.as_bytes())),
            Err(AuthError::Invalid("the token is not the server's token".into()))
        );
    }
    assert_eq!(authenticator.authenticate(None), Err(AuthError::Required));
}

#[test]
fn only_a_bearer_header_holds_a_token() {
    assert_eq!(bearer(b"Bearer abc"), Ok("abc"));
    for wrong in [&b"Basic abc"[..], b"Bearer", b"Bearer  ", b"abc", b"\xff\xfe x"] {
        assert!(bearer(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn a_generated_token_is_private_and_kept() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("state/token");
    let token = ensure_generated(&path).expect("made");
    assert_eq!(token.len(), 43);
    assert_eq!(ensure_generated(&path).expect("kept"), token);
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(path.parent().expect("parent")).expect("there").permissions().mode() & 0o777, 0o700);
}
