//! Pure side: the look of the pictures of a stream, in one place.
//!
//! Blue for smalls and orange for larges, as in the timeline of a cluster; what is kept idle is
//! hatched. Lines of contenders differ in colour and in dashes, so that they stay apart without
//! any colour.

use crate::timeline::svg::draw::Look;

/// Rules and patterns. The classes are those that `plot` and `lanes` name.
pub(super) const LOOK: Look = Look {
    rules: ".head { font-size: 14px; font-weight: 600 }
.side { text-anchor: end; fill: #616e7c; font-size: 10px }
.tick { text-anchor: middle; fill: #616e7c }
.grid { stroke: #dde2e7; stroke-width: 1 }
.row { fill: #f5f7f9 }
.kept { fill: url(#hatch) }
.hatched { fill: #fcf3d9 }
.hatch { stroke: #bfa15f; stroke-width: 1.2 }
.small { fill: #cbe2f4; stroke: #0067a3; stroke-width: 0.6 }
.large { fill: #f0a868; stroke: #a84300; stroke-width: 0.9 }
.queue-small { fill: #9cc7e8; stroke: none }
.queue-large { fill: #e8935a; stroke: none }
.curve { fill: none; stroke-width: 2 }
.c0 { stroke: #7b8794 } .c1 { stroke: #e69f00; stroke-dasharray: 7 3 }
.c2 { stroke: #b8a200; stroke-dasharray: 2 3 } .c3 { stroke: #cc79a7 }
.c4 { stroke: #56b4e9; stroke-dasharray: 7 3 } .c5 { stroke: #009e73; stroke-dasharray: 9 3 2 3 }
.c6 { stroke: #0072b2; stroke-width: 3 } .c7 { stroke: #d55e00; stroke-width: 3 }
.c8 { stroke: #5b3a8c; stroke-dasharray: 4 2 } .c9 { stroke: #1f2933 }
.d0 { fill: #7b8794 } .d1 { fill: #e69f00 } .d2 { fill: #b8a200 } .d3 { fill: #cc79a7 }
.d4 { fill: #56b4e9 } .d5 { fill: #009e73 } .d6 { fill: #0072b2 } .d7 { fill: #d55e00 }
.d8 { fill: #5b3a8c } .d9 { fill: #1f2933 }
",
    defs: r#"<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><rect class="hatched" width="6" height="6"/>
<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>
"#,
};

/// How many lines look different; more contenders share the last look.
pub(super) const LOOKS: usize = 10;
