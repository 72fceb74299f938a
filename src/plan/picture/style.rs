//! Pure side: the look of the picture, in one place.
//!
//! Ten fills that stay apart for common kinds of colour blindness, in the order in which kinds of
//! work appear; services are hatched, so that they read as background.

use crate::timeline::svg::draw::Look;

/// How many fills there are; more kinds of work share the last.
pub(super) const FILLS: usize = 10;

/// How many lines of value there are; one for each policy.
pub(super) const CURVES: usize = 11;

/// Rules and patterns. The classes are those that `picture` names.
pub(super) const LOOK: Look = Look {
    rules: ".policy { font-size: 14px; font-weight: 600 }
.side { text-anchor: end; fill: #616e7c; font-size: 9px }
.tick { text-anchor: middle; fill: #616e7c }
.grid { stroke: #dde2e7; stroke-width: 1 }
.row { fill: #f3f5f7 }
.node { stroke: #9fb3c8; stroke-width: 1 }
.bound { stroke: #52606d; stroke-width: 1; stroke-dasharray: 2 3 }
.name { font-size: 9.5px; fill: #102a43; text-anchor: middle }
.job { fill: #ffffff; stroke: #334e68; stroke-width: 0.8 }
.late { stroke: #ba2525; stroke-width: 1.4; stroke-dasharray: 3 2 }
.service { fill: url(#service) }
.hatched { fill: #e4e7eb }
.hatch { stroke: #9fb3c8; stroke-width: 1 }
.used { fill: #c6d7e6; stroke: none }
.demand { fill: none; stroke: #ba2525; stroke-width: 1.3 }
.curve { fill: none; stroke-width: 1.8 }
.k0 { fill: #a6cee3 } .k1 { fill: #fdbf6f } .k2 { fill: #b2df8a } .k3 { fill: #cab2d6 }
.k4 { fill: #ffff99 } .k5 { fill: #fb9a99 } .k6 { fill: #8dd3c7 } .k7 { fill: #e5d8bd }
.k8 { fill: #d9d9d9 } .k9 { fill: #bebada }
.c0 { stroke: #7b8794 } .c1 { stroke: #e69f00 } .c2 { stroke: #56b4e9 } .c3 { stroke: #009e73 }
.c4 { stroke: #b8a200 } .c5 { stroke: #0072b2 } .c6 { stroke: #d55e00 } .c7 { stroke: #cc79a7 }
.c8 { stroke: #5b3a8c } .c9 { stroke: #1f2933 }
.c10 { stroke: #1f2933; stroke-dasharray: 5 3 }
",
    defs: r#"<defs><pattern id="service" width="5" height="5" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><rect class="hatched" width="5" height="5"/>
<line class="hatch" x1="0" y1="0" x2="0" y2="5"/></pattern></defs>
"#,
};
