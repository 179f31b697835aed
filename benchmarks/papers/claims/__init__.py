"""The papers' claims, and which results speak of each: on the paper's own terms, and on sound
ones. One module for each paper."""

from benchmarks.papers.claims import autocfl, cgau, dbe, distfl, feddisk

PAPERS = (distfl.PAPER, dbe.PAPER, autocfl.PAPER, feddisk.PAPER, cgau.PAPER)
