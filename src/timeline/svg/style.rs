//! Pure side: the look of the picture, in one place.
//!
//! Blue for smalls and orange for larges stay apart for every common kind of colour blindness,
//! and size tells them apart without any colour. Phases are pale, since they are the background
//! of what ran.

use super::draw::Look;

/// Rules and patterns. The classes are those that the other modules name.
pub(super) const LOOK: Look = Look {
    rules: ".node { font-size: 13px; font-weight: 600 }
.side { text-anchor: end; fill: #52606d }
.tick { text-anchor: middle; fill: #616e7c }
.grid { stroke: #dde2e7; stroke-width: 1 }
.row { fill: #f5f7f9 }
.idle { fill: url(#hatch) }
.hatched { fill: #fcf8ec }
.hatch { stroke: #bfa15f; stroke-width: 1.2 }
.Open { fill: #e6ecf1 }
.Draining { fill: #f4e4bf }
.Exclusive { fill: #f3d3bd }
.Wave { fill: #cfe6dc }
.phase { fill: #3e4c59; font-size: 11px }
.small { fill: #cbe2f4; stroke: #0067a3; stroke-width: 1.1 }
.small-name { fill: #08385a; text-anchor: middle }
.large { fill: #f0a868; stroke: #a84300; stroke-width: 1.4 }
.large-name { fill: #3d1800; font-size: 13px; font-weight: 600; text-anchor: middle }
.large-more { fill: #3d1800; text-anchor: middle }
.open { stroke-dasharray: 4 3 }
.clash { fill: #1f2933; fill-opacity: 0.75; stroke: #000000; stroke-width: 1.5 }
.wait-small { stroke: #0067a3; stroke-width: 1.6 }
.wait-large { stroke: #a84300; stroke-width: 3 }
.go-small { fill: #0067a3 }
.go-large { fill: #a84300 }
.wait-note { font-size: 9.5px; fill: #616e7c; text-anchor: end }
.wait-name { font-size: 10px; fill: #3e4c59 }
",
    defs: r#"<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><rect class="hatched" width="6" height="6"/>
<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>
"#,
};
