//! The descriptors of netmap files and of epoll instances that hold some, by number.
//!
//! A number leads to a description, which several numbers may share (dup) and which lives until its last
//! reference is dropped: a number's, or that of a call in progress. Readers take no lock. Descriptions are
//! never freed but used again, so a reader may look at one that was just dropped: it takes a reference only
//! if the count is not zero, and then checks that the number still leads there.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use nix::errno::Errno;

use crate::epoll_set::EpollSet;
use crate::file::File;

/// Numbers of descriptors that can be netmap's.
const MAX_NUMBERS: usize = 65_536;
/// Descriptions at one time.
const MAX_DESCRIPTIONS: usize = 1024;
/// The count of a description that is being filled or emptied.
const CHANGING: u32 = u32::MAX;

/// The object behind a descriptor.
#[derive(Clone)]
pub enum Object {
    /// An open of /dev/netmap.
    Netmap(Arc<File>),
    /// An epoll instance that holds netmap files, or has held some.
    Epoll(Arc<EpollSet>),
}

struct Description {
    /// References; 0 if it is free.
    references: AtomicU32,
    object: UnsafeCell<Option<Object>>,
}

// SAFETY: `object` is written only by the thread that has set `references` to CHANGING, and read only
// through a `Handle`, which is a reference and rules that out. The Release stores and Acquire loads of
// `references` and of the number that leads here publish it.
unsafe impl Sync for Description {}

static DESCRIPTIONS: [Description; MAX_DESCRIPTIONS] =
    [const { Description { references: AtomicU32::new(0), object: UnsafeCell::new(None) } };
        MAX_DESCRIPTIONS];

/// One more than the description of each number; 0 for numbers that are not in the table.
static NUMBERS: [AtomicU16; MAX_NUMBERS] = [const { AtomicU16::new(0) }; MAX_NUMBERS];

/// Numbers in the table.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A reference to a description.
pub struct Handle(&'static Description);

impl Handle {
    fn take(description: &'static Description) -> Option<Self> {
        let more = |count| (count != 0 && count != CHANGING).then(|| count + 1);
        let references = &description.references;
        // Acquire: pairs with the Release in `new` and `drop`.
        references.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        Some(Self(description))
    }

    /// Fills a free description.
    pub fn new(object: Object) -> Option<Self> {
        let claim = |it: &&Description| {
            let references = &it.references;
            references.compare_exchange(0, CHANGING, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let free = DESCRIPTIONS.iter().find(claim)?;
        // SAFETY: this thread has set the count to CHANGING, so no other has access.
        unsafe { *free.object.get() = Some(object) };
        free.references.store(1, Ordering::Release);
        Some(Self(free))
    }

    fn index(&self) -> u16 {
        let at = DESCRIPTIONS.iter().position(|it| std::ptr::eq(it, self.0));
        at.map_or(0, |at| at as u16 + 1)
    }
}

impl Deref for Handle {
    type Target = Object;

    fn deref(&self) -> &Object {
        // SAFETY: this reference keeps the count above 0 and below CHANGING: no thread writes the object.
        match unsafe { &*self.0.object.get() } {
            Some(object) => object,
            None => unreachable!("a description with references has an object"),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let references = &self.0.references;
        loop {
            let count = references.load(Ordering::Relaxed);
            let less = if count == 1 { CHANGING } else { count - 1 };
            // AcqRel: the last reference sees all that others did through theirs.
            let done =
                references.compare_exchange(count, less, Ordering::AcqRel, Ordering::Relaxed);
            if done.is_ok() {
                if count == 1 {
                    break;
                }
                return;
            }
        }
        // SAFETY: this thread has set the count to CHANGING, so no other has access.
        let object = unsafe { (*self.0.object.get()).take() };
        references.store(0, Ordering::Release);
        drop(object);
    }
}

fn number(fd: c_int) -> Option<&'static AtomicU16> {
    NUMBERS.get(usize::try_from(fd).ok()?)
}

/// Returns true if the table is empty, so that no list of descriptors needs to be searched.
pub fn is_empty() -> bool {
    COUNT.load(Ordering::Relaxed) == 0
}

/// Returns true if the table has this descriptor.
pub fn has(fd: c_int) -> bool {
    number(fd).is_some_and(|it| it.load(Ordering::Relaxed) != 0)
}

/// Returns the object of a descriptor.
pub fn get(fd: c_int) -> Option<Handle> {
    let number = number(fd)?;
    loop {
        // Acquire: pairs with the Release in `put`.
        let index = number.load(Ordering::Acquire);
        let description = DESCRIPTIONS.get(usize::from(index.checked_sub(1)?))?;
        let Some(handle) = Handle::take(description) else { continue };
        if number.load(Ordering::Acquire) == index {
            return Some(handle);
        }
    }
}

/// Returns the netmap file of a descriptor.
pub fn netmap(fd: c_int) -> Option<Arc<File>> {
    if !has(fd) {
        return None;
    }
    match &*get(fd)? {
        Object::Netmap(file) => Some(Arc::clone(file)),
        Object::Epoll(_) => None,
    }
}

/// Puts a new object into the table.
///
/// # Errors
/// EMFILE: there are too many, or the number is too high.
pub fn insert(fd: c_int, object: Object) -> Result<(), Errno> {
    put(fd, Handle::new(object).ok_or(Errno::EMFILE)?).map(drop)
}

/// Puts a new object into the table if the descriptor is not there. Returns true if it was not.
///
/// # Errors
/// EMFILE: there are too many, or the number is too high.
pub fn insert_first(fd: c_int, object: Object) -> Result<bool, Errno> {
    let number = number(fd).ok_or(Errno::EMFILE)?;
    let handle = Handle::new(object).ok_or(Errno::EMFILE)?;
    if number.compare_exchange(0, handle.index(), Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return Ok(false);
    }
    std::mem::forget(handle);
    COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(true)
}

/// Makes a descriptor lead to the same object as `handle`. Returns a reference to what it led to before.
///
/// # Errors
/// EMFILE: the number is too high.
pub fn put(fd: c_int, handle: Handle) -> Result<Option<Handle>, Errno> {
    let number = number(fd).ok_or(Errno::EMFILE)?;
    let before = number.swap(handle.index(), Ordering::AcqRel);
    std::mem::forget(handle);
    if before == 0 {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
    Ok(owned(before))
}

/// Takes a descriptor out of the table. If that was the last reference, dropping the answer closes the object.
pub fn remove(fd: c_int) -> Option<Handle> {
    let before = number(fd)?.swap(0, Ordering::AcqRel);
    if before != 0 {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
    owned(before)
}

/// The reference that a number had.
fn owned(index: u16) -> Option<Handle> {
    DESCRIPTIONS.get(usize::from(index.checked_sub(1)?)).map(Handle)
}

/// Returns the descriptors in the table from `first` to `last`.
pub fn numbers(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = (last as usize).min(MAX_NUMBERS - 1);
    let range = if is_empty() { 0..0 } else { first as usize..end + 1 };
    range.map(|fd| fd as c_int).filter(|fd| has(*fd))
}

/// Returns all objects.
pub fn objects() -> impl Iterator<Item = Handle> {
    DESCRIPTIONS.iter().filter(|_| !is_empty()).filter_map(Handle::take)
}
