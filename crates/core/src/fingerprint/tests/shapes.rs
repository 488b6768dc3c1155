use super::*;

/// Made by a thread that saw no other request.
pub(super) fn alone(fingerprinter: &Fingerprinter, body: &str) -> Fingerprint {
    let (fingerprinter, body) = (fingerprinter.clone(), body.to_owned());
    std::thread::spawn(move || fingerprinter.of_json(body.as_bytes())).join().unwrap()
}

#[test]
fn what_a_thread_saw_before_changes_no_fingerprint() {
    // G-6
    let keys = |bytes: &[u8]| bytes.iter().map(|byte| HashKey::new((*byte).into(), [*byte; 32])).collect();
    let fingerprinters = [&[7][..], &[9], &[9, 7]].map(|bytes| Fingerprinter::new(keys(bytes)).unwrap());
    let many = format!("[{}1]", "1,".repeat(100));
    let bodies = [
        r#"{"a":1,"b":2}"#,
        r#"{"a":3,"b":2}"#,
        // The same letters in one path as in the two above.
        r#"{"a":{"b":1}}"#,
        r#"{"a":1,"c":2}"#,
        "[1]",
        "1",
        &many,
    ];
    for first in bodies {
        for second in bodies {
            for (at, fingerprinter) in fingerprinters.iter().enumerate() {
                let expected = alone(fingerprinter, second);
                for before in &fingerprinters {
                    before.of_json(first.as_bytes());
                    let print = fingerprinter.of_json(second.as_bytes());
                    assert!(print == expected, "{second} after {first}, fingerprinter {at}");
                }
            }
        }
    }
}
