//! What a request is doing, finer than its state: the simulator asserts that every case comes up.

use super::Core;
use crate::ids::{ModelId, PAGE_TOKENS, RequestId};
use crate::request::{Request, State};

/// Where one live request stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Whose it is; none while it waits.
    pub(crate) owner: Option<ModelId>,
    /// Not admitted yet.
    pub(crate) waiting: bool,
    /// Waits after it lost its pages.
    pub(crate) preempted: bool,
    /// In a queue.
    pub(crate) ready: bool,
    /// In a batch.
    pub(crate) running: bool,
    /// Has visited a model that does not own it.
    pub(crate) pending: bool,
    /// In the middle of a prompt: its last row, or the one in flight, was cut by the token limit.
    pub(crate) cut: bool,
    /// Cut, and another row of its batch reads what it writes.
    pub(crate) is_read: bool,
    /// Cut, and another request holds the page within which it was cut and has not come past it.
    pub(crate) is_awaited: bool,
}

impl Core {
    /// Where a request stands; none for one that is over.
    pub(crate) fn standing(&self, id: RequestId) -> Option<Standing> {
        let request = self.table.get(id).filter(|r| r.state() != State::Finished)?;
        let Some(owner) = request.state().owner() else {
            let preempted = request.preempted > 0;
            return Some(Standing { waiting: !preempted, preempted, ..Standing::default() });
        };
        let running = request.state() == State::Running(owner);
        let (cut, end, is_read) = match running.then(|| self.row_of(id, owner)).flatten() {
            Some((index, row)) => {
                let reads = self.subservers[owner.index()].reads.contains(&(index as u32));
                (!row.samples, row.start + row.len, reads)
            }
            None => (request.cut, request.watermarks[owner.index()], false),
        };
        Some(Standing {
            owner: Some(owner),
            ready: !running,
            running,
            pending: request.visited.len() > 1,
            cut,
            is_read: cut && is_read,
            is_awaited: cut && self.is_awaited(request, id, owner, end as usize),
            ..Standing::default()
        })
    }

    fn row_of(&self, id: RequestId, model: ModelId) -> Option<(usize, &crate::event::Row)> {
        self.batch(model)?.rows.iter().enumerate().find(|(_, row)| row.request == id)
    }

    fn is_awaited(&self, request: &Request, id: RequestId, model: ModelId, end: usize) -> bool {
        let at = end / PAGE_TOKENS;
        let Some(page) = request.pages.get(at).filter(|_| !end.is_multiple_of(PAGE_TOKENS)) else {
            return false;
        };
        self.table.iter().any(|(slot, other)| {
            slot != id.slot()
                && other.state().owner().is_some()
                && other.pages.get(at) == Some(page)
                && (other.watermarks[model.index()] as usize) < (at + 1) * PAGE_TOKENS
        })
    }
}
