//! Any bytes as the value of `Idempotency-Key`. G-2
#![no_main]

use libfuzzer_sys::fuzz_target;
use semel::Key;
use semel::key::KEY_CHARS_MAX;

fuzz_target!(|value: &[u8]| {
    let bare = value.trim_ascii();
    let well_formed = (1..=KEY_CHARS_MAX).contains(&bare.len()) && bare.iter().all(u8::is_ascii_graphic);
    match Key::parse(value) {
        Ok(key) => accepted(&key),
        Err(refused) => {
            let spaced = value.len() > 2 * KEY_CHARS_MAX;
            let quoted = bare.starts_with(b"\"");
            assert!(!well_formed || quoted || spaced, "refused though well formed: {refused}");
        }
    }
});

fn accepted(key: &Key) {
    let text = key.as_str();
    assert!((1..=KEY_CHARS_MAX).contains(&text.len()));
    assert!(text.bytes().all(|byte| byte.is_ascii_graphic()));
    assert_eq!(Key::from_stored(text).as_ref(), Ok(key), "a store gives back another key");
    let quoted = format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    assert_eq!(Key::parse(quoted.as_bytes()).as_ref(), Ok(key), "the quoted form is another key");
    if !text.starts_with('"') {
        assert_eq!(Key::parse(format!(" {text}\t").as_bytes()).as_ref(), Ok(key), "spaces count");
    }
    let _ = key.weakness();
}
