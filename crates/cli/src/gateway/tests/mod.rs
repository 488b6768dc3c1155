//! The network side as a proxy with nothing in between, on real sockets.

mod bad_input;
mod crowd;
mod ending;
mod forwarding;
mod http2;
mod lost;
mod mixed;
mod rig;
mod seam;
mod streaming;
mod streams;
mod targets;
mod tls;
mod trailers;
