//! Reading a body to its end, within a limit.
//!
//! A body that comes in one frame is not copied. One that comes in many is gathered in one buffer, so
//! that a sender of tiny frames cannot make us hold more than the limit.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body;

use crate::BoxError;

/// How far reading came.
pub(crate) enum Read {
    /// To the end.
    Whole { bytes: Bytes, trailers: Option<Box<HeaderMap>> },
    /// Beyond the limit. What was read so far is in `read` and `next`; the body holds the rest.
    TooLarge { read: Bytes, next: Bytes, size: Option<u64> },
    /// It broke off.
    Cut(BoxError),
}

/// Reads `body` until it ends or exceeds `limit` bytes. A body that announces more is not touched.
pub(crate) async fn read<B>(mut body: Pin<&mut B>, limit: usize) -> Read
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let hint = body.size_hint();
    if hint.lower() > limit as u64 {
        return Read::TooLarge { read: Bytes::new(), next: Bytes::new(), size: hint.exact() };
    }
    let mut gathered = Gathered::Nothing;
    let mut trailers = None::<Box<HeaderMap>>;
    while let Some(frame) = poll_fn(|cx| body.as_mut().poll_frame(cx)).await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Read::Cut(error.into()),
        };
        match frame.into_data() {
            Ok(data) if gathered.len() + data.len() > limit => {
                return Read::TooLarge { read: gathered.into_bytes(), next: data, size: None };
            }
            Ok(data) => gathered = gathered.with(data, hint.lower() as usize),
            Err(other) => {
                if let Ok(more) = other.into_trailers() {
                    trailers.get_or_insert_default().extend(more);
                }
            }
        }
    }
    Read::Whole { bytes: gathered.into_bytes(), trailers }
}

enum Gathered {
    Nothing,
    One(Bytes),
    Many(BytesMut),
}

impl Gathered {
    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::One(bytes) => bytes.len(),
            Self::Many(bytes) => bytes.len(),
        }
    }

    fn with(self, data: Bytes, expected: usize) -> Self {
        match self {
            unchanged if data.is_empty() => unchanged,
            Self::Nothing => Self::One(data),
            Self::One(first) => {
                let mut bytes = BytesMut::with_capacity(expected.max(2 * (first.len() + data.len())));
                bytes.extend_from_slice(&first);
                bytes.extend_from_slice(&data);
                Self::Many(bytes)
            }
            Self::Many(mut bytes) => {
                bytes.extend_from_slice(&data);
                Self::Many(bytes)
            }
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Nothing => Bytes::new(),
            Self::One(bytes) => bytes,
            Self::Many(bytes) => bytes.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::FutureExt;
    use futures_util::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;

    const TEXT: &[u8] = b"abcdefgh";

    /// The text in the pieces that the bits of `cuts` make of it, empty ones between.
    fn pieces(cuts: u32) -> Vec<Bytes> {
        let mut pieces = vec![Vec::new()];
        for (at, byte) in TEXT.iter().enumerate() {
            if cuts >> at & 1 == 1 {
                pieces.extend([Vec::new(), Vec::new()]);
            }
            pieces.last_mut().unwrap().push(*byte);
        }
        pieces.into_iter().map(Bytes::from).collect()
    }

    #[test]
    fn however_a_body_is_cut_into_frames_it_is_read_whole_or_found_too_large() {
        // G-19
        for cuts in 0..1 << TEXT.len() {
            for limit in 0..=TEXT.len() + 1 {
                let frames = pieces(cuts).into_iter().map(|piece| Ok::<_, Infallible>(Frame::data(piece)));
                let mut body = Box::pin(StreamBody::new(stream::iter(frames)));
                let read = read(body.as_mut(), limit).now_or_never().expect("it never waits");
                match read {
                    Read::Whole { bytes, .. } => {
                        assert!(limit >= TEXT.len());
                        assert_eq!(bytes, TEXT);
                    }
                    Read::TooLarge { read: first, next, .. } => {
                        assert!(limit < TEXT.len() && first.len() <= limit);
                        let mut seen = [&first[..], &next[..]].concat();
                        let mut rest = body;
                        while let Some(Some(Ok(frame))) =
                            poll_fn(|cx| rest.as_mut().poll_frame(cx)).now_or_never()
                        {
                            seen.extend_from_slice(frame.data_ref().unwrap());
                        }
                        assert_eq!(seen, TEXT, "a byte was lost between what was read and the rest");
                    }
                    Read::Cut(error) => panic!("{error}"),
                }
            }
        }
    }
}
