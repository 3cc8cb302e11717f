//! The closed class of a chain: the states that it visits for ever.

use super::chain::Chain;
use super::error::PlanError;

/// The states of the only closed class, in increasing order.
///
/// # Errors
/// If there are several.
pub(super) fn closed_class(chain: &Chain<'_>) -> Result<Vec<u32>, PlanError> {
    let component = components(chain);
    let count = component.iter().max().map_or(0, |&c| c as usize + 1);
    let mut closed = vec![true; count];
    for from in 0..chain.states() {
        if chain.targets(from).iter().any(|&to| component[to as usize] != component[from]) {
            closed[component[from] as usize] = false;
        }
    }
    let classes = closed.iter().filter(|c| **c).count();
    if classes != 1 {
        return Err(PlanError::SeveralClosedClasses { classes });
    }
    Ok((0..chain.states() as u32).filter(|&s| closed[component[s as usize] as usize]).collect())
}

/// The strongly connected component of every state (Tarjan's algorithm with its own stack: chains are deep).
fn components(chain: &Chain<'_>) -> Vec<u32> {
    const UNSEEN: u32 = u32::MAX;
    let states = chain.states();
    let mut component = vec![UNSEEN; states];
    let mut order = vec![UNSEEN; states];
    let mut low = vec![0; states];
    let (mut next, mut found) = (0, 0);
    let mut open: Vec<u32> = Vec::new();
    // State 0 reaches every state, so one search sees them all.
    let mut path: Vec<(u32, usize)> = vec![(0, 0)];
    while let Some((state, edge)) = path.last_mut() {
        let s = *state as usize;
        if *edge == 0 && order[s] == UNSEEN {
            order[s] = next;
            low[s] = next;
            next += 1;
            open.push(*state);
        }
        if let Some(&to) = chain.targets(s).get(*edge) {
            *edge += 1;
            let t = to as usize;
            if order[t] == UNSEEN {
                path.push((to, 0));
            } else if component[t] == UNSEEN {
                low[s] = low[s].min(order[t]);
            }
            continue;
        }
        if low[s] == order[s] {
            while let Some(member) = open.pop() {
                component[member as usize] = found;
                if member as usize == s {
                    break;
                }
            }
            found += 1;
        }
        path.pop();
        if let Some((parent, _)) = path.last() {
            let p = *parent as usize;
            low[p] = low[p].min(low[s]);
        }
    }
    component
}
