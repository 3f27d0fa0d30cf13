//! Decides whether a difference between shares is statistically significant.
//!
//! A share is a proportion of samples, so two shares are compared by the two-proportion z-test with pooled variance. For samples
//! of unequal weight, the number is Kish's effective sample size. As many functions are compared at once, the
//! Benjamini-Hochberg procedure (J. R. Statist. Soc. B 57, 1995) bounds the rate of false positives among those marked.

/// Maximum expected share of false positives among the marked differences.
const FALSE_DISCOVERY_RATE: f64 = 0.05;

/// The p-value for the shares `share_a` of `n_a` and `share_b` of `n_b` samples: the probability of at least this difference
/// if both come from the same distribution. 1 if there is nothing to compare.
pub(super) fn probability(share_a: f64, n_a: f64, share_b: f64, n_b: f64) -> f64 {
    if n_a == 0.0 || n_b == 0.0 {
        return 1.0;
    }
    let pooled = (share_a * n_a + share_b * n_b) / (n_a + n_b);
    let deviation = (pooled * (1.0 - pooled) * (1.0 / n_a + 1.0 / n_b)).sqrt();
    if deviation <= 0.0 || !deviation.is_finite() {
        return 1.0;
    }
    let z = (share_b - share_a).abs() / deviation;
    libm::erfc(z / std::f64::consts::SQRT_2)
}

/// The p-value for two counts: the probability of at least this difference between Poisson processes of the same rate.
pub(super) fn of_counts(a: f64, b: f64) -> f64 {
    if a + b <= 0.0 { 1.0 } else { libm::erfc((b - a).abs() / (2.0 * (a + b)).sqrt()) }
}

/// Which of these p-values are significant at [`FALSE_DISCOVERY_RATE`].
pub(super) fn significant(probabilities: &[f64]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|&a, &b| probabilities[a].total_cmp(&probabilities[b]));
    let step = FALSE_DISCOVERY_RATE / probabilities.len().max(1) as f64;
    let holds = |rank: usize| probabilities[order[rank]] <= step * (rank + 1) as f64;
    let count = (0..order.len()).rev().find(|&rank| holds(rank)).map_or(0, |rank| rank + 1);
    let mut marks = vec![false; probabilities.len()];
    order[..count].iter().for_each(|&index| marks[index] = true);
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_of_the_test() {
        // z = 1.96: p is 5 %.
        let p = probability(0.50, 1000.0, 0.5438, 1000.0);
        assert!((p - 0.05).abs() < 0.001, "{p}");
        assert_eq!(probability(0.3, 500.0, 0.3, 800.0), 1.0);
        assert!(probability(0.1, 1e4, 0.2, 1e4) < 1e-80);
        assert_eq!(probability(0.5, 0.0, 0.5, 10.0), 1.0);
        assert_eq!(probability(1.0, 5.0, 1.0, 10.0), 1.0);
    }

    #[test]
    fn counts_differ_by_chance_too() {
        // z = 1.96 again: a difference of 15.68 with 64 in all.
        let p = of_counts(24.16, 39.84);
        assert!((p - 0.05).abs() < 0.001, "{p}");
        assert_eq!((of_counts(0.0, 0.0), of_counts(7.0, 7.0)), (1.0, 1.0));
        assert!(of_counts(0.0, 100.0) < 1e-20);
    }

    #[test]
    fn chance_among_many_is_not_marked() {
        assert_eq!(significant(&[0.04]), [true]);
        // One in twenty is below 5 % by chance.
        let mut many = vec![0.5; 19];
        many.push(0.04);
        assert!(significant(&many).iter().all(|mark| !mark));
        many.push(1e-6);
        assert_eq!(significant(&many).iter().filter(|mark| **mark).count(), 1);
        assert_eq!(
            significant(&[0.01, 0.04, 0.03]),
            [true; 3],
            "the largest that holds takes the others along"
        );
        assert!(significant(&[]).is_empty());
    }
}
