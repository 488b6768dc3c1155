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
#[allow(dead_code)]
#[path = "../../../crates/cli/src/say.rs"]
mod say;

fuzz_target!(|bytes: &[u8]| {
    let lines = bytes.split(|byte| *byte == b'\n').count();
    match config::from_bytes(bytes) {
        Ok(resolved) => {
            assert_eq!(config::reload::orphans(&resolved.gateway, &resolved.gateway), Ok(()), "G-1");
            usable(&resolved.gateway);
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

/// What was accepted can be run: nothing behind the settings judges again.
fn usable(gateway: &config::resolved::Gateway) {
    let keys = gateway.encryption.as_ref().map(|keys| config::policy::keyring(keys).expect("usable keys"));
    let routes = gateway.routes.iter().map(|route| (route.methods(), &route.settings));
    for (methods, settings) in routes.chain([(&[][..], &gateway.fallback)]) {
        let policy = config::policy::policy(settings, keys.as_ref(), None).expect("a usable policy");
        let methods = if methods.is_empty() { &config::resolved::Route::PROTECTED_METHODS } else { methods };
        let mut route = semel::http::Route::by_path()
            .methods(methods.iter().cloned())
            .protection(settings.protection)
            .policy(policy)
            .releasing(settings.releasing.iter().copied())
            .store_headers(settings.store_headers.iter().cloned())
            .fingerprint_headers(settings.fingerprint_headers.iter().cloned())
            .fingerprint_exclude(settings.fingerprint_exclude.iter().cloned())
            .replay_header(settings.replay_header.clone())
            .expired_keys(settings.expired_keys.clone());
        if let Some(name) = &settings.subject_header {
            route = route.subject_header(name.clone());
        }
        let route = route.build();
        assert!(route.is_ok(), "check-config accepts what a gateway refuses: {:?}", route.err());
    }
}
