//! What a crash leaves behind, at each place where it hurts.

crate::crashes::crashes!("postgres", "pg");
