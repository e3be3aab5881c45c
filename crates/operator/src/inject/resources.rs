//! Whether a pod has the QoS class Guaranteed, which the sidecar must preserve.

use crate::inject::value::Value;

/// True when every container has CPU and memory limits, and requests equal to them. If the pod itself has resources,
/// these decide, and no container can change the class.
///
/// Source: kubernetes.io, "Pod Quality of Service Classes".
pub(super) fn is_guaranteed(spec: &Value) -> bool {
    if spec.at(&["resources", "limits"]).or(spec.at(&["resources", "requests"])).is_some() {
        return false;
    }
    let mut all = spec.list("containers").iter().chain(spec.list("initContainers")).peekable();
    all.peek().is_some() && all.all(has_equal_limits)
}

fn has_equal_limits(container: &Value) -> bool {
    ["cpu", "memory"].into_iter().all(|resource| {
        let limit = container.at(&["resources", "limits", resource]).and_then(quantity);
        // A missing request defaults to the limit.
        let request = container.at(&["resources", "requests", resource]);
        limit.is_some_and(|limit| limit > 0.0 && request.is_none_or(|request| quantity(request) == Some(limit)))
    })
}

/// Parses a Kubernetes quantity: `100m`, `2`, `1.5Gi`, `1e3`.
fn quantity(value: &Value) -> Option<f64> {
    let text = match value {
        Value::Integer(number) => return Some(*number as f64),
        Value::Number(number) => return Some(*number),
        Value::Text(text) => text.trim(),
        _ => return None,
    };
    const UNITS: [(&str, f64); 15] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let (number, unit) =
        UNITS.iter().find_map(|(unit, by)| Some((text.strip_suffix(unit)?, *by))).unwrap_or((text, 1.0));
    number.parse().ok().filter(|number: &f64| number.is_finite()).map(|number| number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubernetes_quantities_are_parsed() {
        for (text, expected) in [
            ("2", Some(2.0)),
            ("2000m", Some(2.0)),
            ("1Gi", Some(1_073_741_824.0)),
            ("1024Mi", Some(1_073_741_824.0)),
            ("1.5k", Some(1500.0)),
            ("1e3", Some(1000.0)),
            ("", None),
            ("lots", None),
        ] {
            assert_eq!(quantity(&Value::from(text)), expected, "{text}");
        }
    }
}
