//! Which model runs on which devices, and what follows from it.

use tokenrouter_scheduler::{ModelId, ModelSet};

use crate::device::check_devices;

/// The devices of every model, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    devices: Vec<Vec<usize>>,
    /// The collective group of each model, numbered from 0.
    groups: Vec<Option<usize>>,
}

impl Placement {
    /// Checks the devices of every model, in the order of the models.
    ///
    /// # Errors
    /// The index of the model and, in words, its value and what would be right.
    pub(crate) fn new(devices: Vec<Vec<usize>>) -> Result<Self, (usize, String)> {
        for (model, own) in devices.iter().enumerate() {
            check_devices(own).map_err(|problem| (model, problem))?;
        }
        let groups = collective_groups(&devices);
        Ok(Self { devices, groups })
    }

    /// The devices of a model: its parts in order.
    pub(crate) fn devices(&self, model: usize) -> &[usize] {
        &self.devices[model]
    }

    /// The collective group of a model, `None` when it is in none.
    #[cfg(any(test, feature = "cuda-host"))]
    pub(crate) fn group(&self, model: usize) -> Option<usize> {
        self.groups[model]
    }

    /// The models of every collective group. Only one of a group runs at a time.
    pub(crate) fn exclusive(&self) -> Vec<ModelSet> {
        let count = self.groups.iter().flatten().max().map_or(0, |last| last + 1);
        let mut sets = vec![ModelSet::EMPTY; count];
        for (model, group) in self.groups.iter().enumerate() {
            if let Some(group) = group {
                sets[*group].insert(ModelId(model as u8));
            }
        }
        sets
    }
}

/// Models that share two or more ranks, directly or through others, are one group: their collectives could meet in
/// another order on one of the ranks and wait for each other for ever. Groups are numbered in the order of their first
/// models.
pub(crate) fn collective_groups(devices: &[Vec<usize>]) -> Vec<Option<usize>> {
    let shared = |a: usize, b: usize| devices[a].iter().filter(|d| devices[b].contains(d)).count();
    let mut groups = vec![None; devices.len()];
    let mut count = 0;
    for first in 0..devices.len() {
        if groups[first].is_some() {
            continue;
        }
        let mut members = vec![first];
        let mut at = 0;
        while let Some(&member) = members.get(at) {
            let near = (0..devices.len()).filter(|m| shared(member, *m) > 1 && !members.contains(m));
            let near: Vec<usize> = near.collect();
            members.extend(near);
            at += 1;
        }
        if members.len() > 1 {
            members.iter().for_each(|m| groups[*m] = Some(count));
            count += 1;
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(devices: &[&[usize]]) -> Vec<Option<usize>> {
        collective_groups(&devices.iter().map(|d| d.to_vec()).collect::<Vec<_>>())
    }

    #[test]
    fn models_that_share_two_ranks_are_a_group() {
        assert_eq!(groups(&[&[0], &[0]]), [None, None]);
        assert_eq!(groups(&[&[0], &[0, 1]]), [None, None], "one shared rank orders itself");
        assert_eq!(groups(&[&[0, 1], &[1, 2]]), [None, None]);
        assert_eq!(groups(&[&[0, 1], &[0, 1]]), [Some(0), Some(0)]);
        assert_eq!(groups(&[&[0, 1], &[1, 0, 2, 3]]), [Some(0), Some(0)]);
        assert_eq!(
            groups(&[&[2, 3], &[0, 1], &[3, 2], &[1, 0], &[4]]),
            [Some(0), Some(1), Some(0), Some(1), None]
        );
        // The ends of a chain share nothing and are one group all the same.
        assert_eq!(groups(&[&[4, 5], &[0, 1], &[0, 1, 2, 3, 4, 5]]), [Some(0), Some(0), Some(0)]);
    }

    #[test]
    fn groups_are_exclusive_sets() {
        let placement = Placement::new(vec![vec![3], vec![1, 2], vec![2, 1]]).unwrap();
        let pair: ModelSet = [ModelId(1), ModelId(2)].into_iter().collect();
        assert_eq!(placement.exclusive(), [pair]);
        assert_eq!((placement.group(0), placement.group(2)), (None, Some(0)));
        assert!(Placement::new(vec![vec![0], vec![0, 1]]).unwrap().exclusive().is_empty());
    }

    #[test]
    fn bad_devices_are_refused_with_model_and_value() {
        let refused = |devices: &[&[usize]]| {
            Placement::new(devices.iter().map(|d| d.to_vec()).collect()).expect_err("a refusal")
        };
        let (model, why) = refused(&[&[0], &[]]);
        assert!(model == 1 && why.contains("devices is empty"), "{why}");
        let (model, why) = refused(&[&[0], &[2, 1, 2]]);
        assert!(model == 1 && why.contains("device 2 twice"), "{why}");
        let (model, why) = refused(&[&[64]]);
        assert!(model == 0 && why.contains("device 64") && why.contains("63"), "{why}");
    }
}
