//! The list of a poll(2) that has netmap files.

use std::sync::Arc;

use libc::pollfd;
use nix::poll::PollFlags;

use crate::epoll_set::EpollSet;
use crate::file::File;
use crate::table::{self, Object};
use crate::wait::{Waited, WaitedFiles};

/// Descriptors with the events to wait for, and those found.
pub struct WaitList(Vec<Entry>);

struct Entry {
    entry: pollfd,
    kind: Kind,
}

enum Kind {
    Netmap(Arc<File>),
    /// The kernel also has an answer for it, as for others.
    Epoll(Arc<EpollSet>),
    Other,
}

impl WaitList {
    /// Looks up the descriptors. The list keeps their files open.
    pub fn new(entries: impl Iterator<Item = pollfd>) -> Self {
        let entry = |entry: pollfd| {
            let kind = match table::get(entry.fd).as_deref() {
                Some(Object::Netmap(file)) => Kind::Netmap(Arc::clone(file)),
                Some(Object::Epoll(set)) => Kind::Epoll(Arc::clone(set)),
                None => Kind::Other,
            };
            Entry { entry: pollfd { revents: 0, ..entry }, kind }
        };
        Self(entries.map(entry).collect())
    }

    /// Returns the events found for each descriptor.
    pub fn events(&self) -> impl Iterator<Item = i16> {
        self.0.iter().map(|it| it.entry.revents)
    }

    /// Returns the descriptors, with the events found.
    pub fn entries(&self) -> impl Iterator<Item = &pollfd> {
        self.0.iter().map(|it| &it.entry)
    }
}

fn flags(events: i16) -> PollFlags {
    PollFlags::from_bits_truncate(events)
}

impl Waited for WaitList {
    fn sync(&mut self) -> usize {
        let mut ready = 0;
        for Entry { entry, kind } in &mut self.0 {
            entry.revents = match kind {
                Kind::Netmap(file) => file.poll(flags(entry.events)).bits(),
                Kind::Epoll(set) if !set.sync().is_empty() => entry.events & libc::POLLIN,
                Kind::Epoll(_) | Kind::Other => 0,
            };
            ready += usize::from(entry.revents != 0);
        }
        ready
    }

    fn others(&self, list: &mut Vec<pollfd>) {
        let others = self.0.iter().filter(|it| !matches!(it.kind, Kind::Netmap(_)));
        list.extend(others.map(|it| pollfd { revents: 0, ..it.entry }));
    }

    fn take(&mut self, list: &[pollfd]) -> usize {
        let others = self.0.iter_mut().filter(|it| !matches!(it.kind, Kind::Netmap(_)));
        let mut ready = 0;
        for (Entry { entry, .. }, answer) in others.zip(list) {
            ready += usize::from(entry.revents == 0 && answer.revents != 0);
            entry.revents |= answer.revents;
        }
        ready
    }

    fn files(&self, files: &mut WaitedFiles) {
        for it in &self.0 {
            match &it.kind {
                Kind::Netmap(file) => files.add(file, flags(it.entry.events)),
                Kind::Epoll(set) => set.files(files),
                Kind::Other => {}
            }
        }
    }
}
