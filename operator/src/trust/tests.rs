use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use ring::signature::{ED25519, UnparsedPublicKey};

use super::*;

const AUDIENCE: &str = "team-a/alice/w-1/p-1";

fn now() -> Timestamp {
    Timestamp::from_second(1_790_000_000).unwrap()
}

fn ring() -> KeyRing {
    KeyRing::read(&KeyRing::generate().unwrap()).unwrap()
}

fn public_keys(ring: &KeyRing) -> Vec<serde_json::Value> {
    let set: serde_json::Value = serde_json::from_str(&ring.public_key_set()).unwrap();
    set["keys"].as_array().unwrap().clone()
}

/// Verification from the published key set alone, with ring and without the library that signed.
fn verify(token: &str, keys: &[serde_json::Value]) -> Result<serde_json::Value, String> {
    let (signed, signature) = token.rsplit_once('.').ok_or("no signature")?;
    let (header, claims) = signed.split_once('.').ok_or("no claims")?;
    let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|error| error.to_string());
    let header: serde_json::Value = serde_json::from_slice(&decode(header)?).map_err(|error| error.to_string())?;
    if header["alg"] != "EdDSA" {
        return Err("not EdDSA".to_owned());
    }
    let key = keys.iter().find(|key| key["kid"] == header["kid"]).ok_or("unknown kid")?;
    let public = decode(key["x"].as_str().unwrap())?;
    UnparsedPublicKey::new(&ED25519, public)
        .verify(signed.as_bytes(), &decode(signature)?)
        .map_err(|_| "wrong signature".to_owned())?;
    let claims: serde_json::Value = serde_json::from_slice(&decode(claims)?).map_err(|error| error.to_string())?;
    if claims["scope"] != key["boring_scope"] {
        return Err("scope is not the key's".to_owned());
    }
    Ok(claims)
}

#[test]
fn a_user_token_carries_the_contract_claims_and_verifies_from_the_published_keys() {
    let ring = ring();
    let token = ring.sign(Scope::User, AUDIENCE.to_owned(), "alice@example.com", now(), PRINTED_TOKEN_SECONDS).unwrap();
    assert_eq!(
        verify(&token, &public_keys(&ring)).unwrap(),
        serde_json::json!({
            "iss": "agents.boring.dev/operator", "aud": AUDIENCE, "sub": "alice@example.com", "scope": "user",
            "iat": 1_790_000_000, "nbf": 1_790_000_000, "exp": 1_790_000_600,
        })
    );
}

#[test]
fn a_lifecycle_token_lives_one_minute_and_is_signed_by_the_lifecycle_key() {
    let ring = ring();
    let token =
        ring.sign(Scope::Lifecycle, AUDIENCE.to_owned(), LIFECYCLE_SUBJECT, now(), LIFECYCLE_TOKEN_SECONDS).unwrap();
    let claims = verify(&token, &public_keys(&ring)).unwrap();
    assert_eq!((claims["scope"].as_str(), claims["exp"].as_i64()), (Some("lifecycle"), Some(1_790_000_060)));
    let header = jsonwebtoken::decode_header(&token).unwrap();
    assert_eq!(header.kid.as_deref(), Some(ring.signing(Scope::Lifecycle).unwrap().id.as_str()));
    assert_ne!(ring.signing(Scope::Lifecycle).unwrap().id, ring.signing(Scope::User).unwrap().id);
}

#[test]
fn the_library_on_the_other_side_accepts_the_token_for_this_audience_only() {
    let ring = ring();
    let token = ring.sign(Scope::User, AUDIENCE.to_owned(), "bob", Timestamp::now(), 60).unwrap();
    let key = public_keys(&ring).into_iter().find(|key| key["boring_scope"] == "user").unwrap();
    let key = DecodingKey::from_ed_components(key["x"].as_str().unwrap()).unwrap();
    let mut validation = Validation::new(Algorithm::EdDSA);
    validation.set_audience(&[AUDIENCE]);
    assert_eq!(jsonwebtoken::decode::<Claims>(&token, &key, &validation).unwrap().claims.sub, "bob");
    validation.set_audience(&["team-a/alice/w-1/p-2"]);
    assert!(jsonwebtoken::decode::<Claims>(&token, &key, &validation).is_err());
}

#[test]
fn another_rings_keys_and_changed_claims_do_not_verify() {
    let (ring, other) = (ring(), ring());
    let token = ring.sign(Scope::User, AUDIENCE.to_owned(), "bob", now(), 60).unwrap();
    assert_eq!(verify(&token, &public_keys(&other)), Err("unknown kid".to_owned()));
    let mut parts: Vec<String> = token.split('.').map(str::to_owned).collect();
    parts[1] = URL_SAFE_NO_PAD.encode(r#"{"scope":"user","sub":"mallory"}"#);
    assert_eq!(verify(&parts.join("."), &public_keys(&ring)), Err("wrong signature".to_owned()));
}

#[test]
fn a_token_whose_scope_is_not_that_of_its_key_is_told_apart() {
    let ring = ring();
    let mut keys = public_keys(&ring);
    for key in &mut keys {
        key["boring_scope"] = "lifecycle".into();
    }
    let token = ring.sign(Scope::User, AUDIENCE.to_owned(), "bob", now(), 60).unwrap();
    assert_eq!(verify(&token, &keys), Err("scope is not the key's".to_owned()));
}

#[test]
fn several_keys_are_published_and_the_current_one_signs() {
    let mut data = KeyRing::generate().unwrap();
    let next = KeyRing::generate().unwrap()["user-current.pk8"].clone();
    data.insert("user-next.pk8".to_owned(), next);
    let ring = KeyRing::read(&data).unwrap();
    let scopes: Vec<String> =
        public_keys(&ring).iter().map(|key| key["boring_scope"].as_str().unwrap().to_owned()).collect();
    assert_eq!(scopes, ["user", "user", "lifecycle"]);
    assert_eq!(ring.signing(Scope::User).unwrap().stage, Stage::Current);
}

#[test]
fn a_secret_without_a_current_key_or_with_rubbish_is_refused_with_its_name_and_without_its_value() {
    let mut data = KeyRing::generate().unwrap();
    data.insert("lifecycle-current.pk8".to_owned(), b"rubbish-value".to_vec());
    let text = KeyRing::read(&data).unwrap_err().to_string();
    assert!(text.contains("lifecycle-current.pk8") && !text.contains("rubbish-value"), "{text}");
    data.remove("lifecycle-current.pk8");
    assert!(KeyRing::read(&data).unwrap_err().to_string().contains("no entry lifecycle-current.pk8"));
}

#[test]
fn the_key_set_is_the_same_after_a_reload_and_nothing_prints_the_private_part() {
    let data = KeyRing::generate().unwrap();
    let (first, second) = (KeyRing::read(&data).unwrap(), KeyRing::read(&data).unwrap());
    assert_eq!(first.public_key_set(), second.public_key_set());
    assert!(first.public_key_set().len() < 1024, "the annotation stays small");
    let printed = format!("{first:?}");
    assert!(!printed.contains("private") && !printed.contains("public:"), "{printed}");
}

#[test]
fn a_gateway_signs_for_users_and_cannot_sign_lifecycle_tokens() {
    let ring = KeyRing::read(&KeyRing::generate().unwrap()).unwrap();
    let gateway = KeyRing::read_user_keys(&ring.user_keys()).unwrap();
    assert_eq!(gateway.signing(Scope::User).unwrap().id, ring.signing(Scope::User).unwrap().id);
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    let refused = gateway.sign(Scope::Lifecycle, String::new(), "x", now, 60);
    assert_eq!(refused.map_err(|error| error.reason()), Err("KeyMissing"));
}

#[test]
fn a_tag_proves_text_and_purpose_to_whoever_holds_the_user_keys() {
    let ring = KeyRing::read(&KeyRing::generate().unwrap()).unwrap();
    let gateway = KeyRing::read_user_keys(&ring.user_keys()).unwrap();
    let tag = ring.authenticate("session", b"text").unwrap();
    assert!(gateway.is_authentic("session", b"text", &tag));
    assert!(!gateway.is_authentic("session", b"other", &tag));
    assert!(!gateway.is_authentic("link", b"text", &tag));
    assert!(!gateway.is_authentic("session", b"text", &tag[1..]));
    let other = KeyRing::read(&KeyRing::generate().unwrap()).unwrap();
    assert!(!other.is_authentic("session", b"text", &tag));
}
