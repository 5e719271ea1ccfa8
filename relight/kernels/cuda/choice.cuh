// Which compressed entries a row chooses from. Knows no score.
#pragma once
#include "lanes.cuh"

D float none() { return __uint_as_float(0xFF800000u); }  // the score of no entry

// What a row may choose from.
struct Choice {
  const i64* candidates;  // of the row, -1 behind; where null, all that it sees
  int blocks, size, visible;
  D int count() const { return candidates ? min(blocks, (visible + size - 1) / size) * size : visible; }
  D int entry(int i) const {  // -1 where it sees none
    if (!candidates) return i < visible ? i : -1;
    const int block = i < count() ? (int)candidates[i / size] : -1, found = block * size + i % size;
    return block < 0 || found >= visible ? -1 : found;
  }
};
