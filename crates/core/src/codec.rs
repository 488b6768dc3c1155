//! Bytes in a fixed order: what the versioned encodings of outcomes and histories are made of.

use std::fmt;

/// Appends lengths and numbers as LEB128, byte strings with their length before them.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }
}

/// How many bytes [`Writer::number`] writes.
pub(crate) fn number_bytes(value: u64) -> usize {
    (64 - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Reads what [`Writer`] wrote; every shortfall is [`Truncated`], never a panic.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

/// The bytes ended early, or a number in them does not fit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Truncated;

impl<'a> Reader<'a> {
    pub(crate) fn byte(&mut self) -> Result<u8, Truncated> {
        let (first, rest) = self.0.split_first().ok_or(Truncated)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn number(&mut self) -> Result<u64, Truncated> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return Err(Truncated);
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Truncated)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Truncated> {
        let length = usize::try_from(self.number()?).map_err(|_| Truncated)?;
        self.take(length)
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Truncated> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Truncated)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// The two digits of a byte.
pub(crate) fn hex(byte: u8) -> [char; 2] {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    [digit(byte >> 4), digit(byte & 15)]
}

pub(crate) fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    use fmt::Write;
    bytes.iter().flat_map(|byte| hex(*byte)).try_for_each(|digit| f.write_char(digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bytes_come_back_and_short_input_is_an_error() {
        let mut writer = Writer::default();
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            let before = writer.0.len();
            writer.number(value);
            assert_eq!(writer.0.len() - before, number_bytes(value));
        }
        writer.bytes(b"body");
        let whole = writer.0;
        let mut reader = Reader(&whole);
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX] {
            assert_eq!(reader.number(), Ok(value));
        }
        assert_eq!(reader.bytes(), Ok(&b"body"[..]));
        for cut in 0..whole.len() {
            let mut reader = Reader(&whole[..cut]);
            let read =
                (0..7).try_for_each(|_| reader.number().map(drop)).and_then(|()| reader.bytes().map(drop));
            assert_eq!(read, Err(Truncated));
        }
        assert_eq!(Reader(&[0xff; 11]).number(), Err(Truncated));
    }
}
