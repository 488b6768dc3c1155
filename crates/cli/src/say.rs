//! What a command says on stdout.

use std::io::{self, Write};

/// Says a line.
macro_rules! say {
    ($($words:tt)*) => { $crate::say::text(&format!("{}\n", format_args!($($words)*))) };
}
pub(crate) use say;

/// Whoever reads may have seen enough (`| head`); that is no failure. Where nothing can be said for another reason, there is
/// nothing more to do, and the exit code is that of `sysexits.h` for it.
pub(crate) fn text(text: &str) {
    if let Err(error) = io::stdout().write_all(text.as_bytes())
        && error.kind() != io::ErrorKind::BrokenPipe
    {
        eprintln!("semel: stdout takes no more: {error}");
        // No code by which a command tells what it found.
        std::process::exit(74);
    }
}
