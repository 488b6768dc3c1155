use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::thread::LocalKey;

/// Lists that grew beyond this go back to the allocator.
const KEPT_BYTES_MAX: usize = 1 << 16;

/// Where a thread keeps a list between two requests.
pub(super) type Home<T> = &'static LocalKey<Cell<Vec<T>>>;

/// An empty list with the room that an earlier request needed, lent until it is dropped.
///
/// A fingerprint is made in half a dozen lists that nobody needs afterwards; asking the allocator for them, and
/// letting them grow, took a third of the time. What was in a list is not wiped, as it is not in freed memory.
pub(super) struct Lent<T: 'static> {
    list: Vec<T>,
    home: Home<T>,
}

impl<T> Lent<T> {
    /// Whoever comes while the list is out gets a new one.
    pub(super) fn from(home: Home<T>) -> Self {
        Self { list: home.take(), home }
    }
}

impl<T> Deref for Lent<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.list
    }
}

impl<T> DerefMut for Lent<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        &mut self.list
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        if self.list.capacity() * size_of::<T>() <= KEPT_BYTES_MAX {
            self.list.clear();
            self.home.set(std::mem::take(&mut self.list));
        }
    }
}
