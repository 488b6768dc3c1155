//! Any bytes as `semel.toml`: a gateway's settings, or all that is wrong, each with its place.
//!
//! The modules are the binary's own; it has no library that could be linked.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../../crates/cli/src/config/mod.rs"]
mod config;
#[allow(dead_code)]
mod gateway;

fuzz_target!(|bytes: &[u8]| {
    let lines = bytes.split(|byte| *byte == b'\n').count();
    match config::from_bytes(bytes) {
        Ok(resolved) => {
            assert_eq!(config::reload::orphans(&resolved.gateway, &resolved.gateway), Ok(()), "G-1");
            let shown = resolved.shown.text(&resolved.warnings);
            let again = config::from_bytes(bytes).map(|again| again.shown.text(&again.warnings));
            assert_eq!(again.ok(), Some(shown));
            assert!(resolved.shown.json(&resolved.warnings).is_object());
        }
        Err(mistakes) => {
            assert!(!mistakes.is_empty(), "refused without a reason");
            for mistake in mistakes {
                assert!(!mistake.sentence.is_empty());
                if let config::mistake::Place::File { line, .. } = mistake.place {
                    assert!((1..=lines).contains(&line), "line {line} of {lines}");
                }
            }
        }
    }
});
