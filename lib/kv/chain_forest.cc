#include "kv/chain_forest.h"

#include <algorithm>

#include "base/assert.h"

namespace mc::kv {

void ChainForest::resize(size_t count) {
  MC_ASSERT_LE(nodes_.size(), count);
  nodes_.resize(count);
  leaves_.resize(count);
}

ChainForest::Node& ChainForest::at(PageIndex page) {
  MC_ASSERT_LT(page, nodes_.size());
  return nodes_[page];
}

PageIndex ChainForest::find(const BlockHash& hash) const {
  const auto it = index_.find(hash);
  return it == index_.end() ? kNoPage : it->second;
}

// A cycle can only close when the parent descends from a child of the new block, so from an orphan.
BlockHash ChainForest::acyclic_parent(const BlockHash& hash, const BlockHash& parent) const {
  PageIndex ancestor = find(parent);
  bool closes = parent == hash;
  if (ancestor != kNoPage && orphans_.contains(hash)) {
    while (nodes_[ancestor].parent != kNoPage) ancestor = nodes_[ancestor].parent;
    closes = closes || nodes_[ancestor].parent_hash == hash;
  }
  return closes ? BlockHash{} : parent;
}

void ChainForest::add(PageIndex page, const BlockHash& hash, const BlockHash& parent, uint64_t rank) {
  MC_ASSERT(!has(page));
  MC_ASSERT(hash != parent);
  const bool fresh = index_.emplace(hash, page).second;
  MC_ASSERT(fresh);
  Node& n = nodes_[page];
  n = {.here = true, .rank = rank, .hash = hash, .parent_hash = parent};
  ++unheld_;
  if (!parent.is_zero()) {
    n.parent = find(parent);
    PageIndex& head =
        n.parent != kNoPage ? nodes_[n.parent].first_child : orphans_.try_emplace(parent, kNoPage).first->second;
    n.next_sibling = head;
    if (head != kNoPage) nodes_[head].prev_sibling = page;
    head = page;
  }
  if (const auto it = orphans_.find(hash); it != orphans_.end()) {
    n.first_child = it->second;
    orphans_.erase(it);
    for (PageIndex child = n.first_child; child != kNoPage; child = nodes_[child].next_sibling) {
      nodes_[child].parent = page;
      n.blocked += nodes_[child].held ? 1 : 0;
    }
  }
  if (n.parent != kNoPage) settle(n.parent);  // no longer a leaf
  settle(page);
}

void ChainForest::remove(PageIndex page) {
  MC_ASSERT(has(page));
  Node& n = nodes_[page];
  if (leaves_.contains(page)) leaves_.erase(page);
  if (!n.held) --unheld_;
  if (n.first_child != kNoPage) {
    orphans_.emplace(n.hash, n.first_child);
    for (PageIndex child = n.first_child; child != kNoPage; child = nodes_[child].next_sibling)
      nodes_[child].parent = kNoPage;
  }
  unlink_from_siblings(n);
  index_.erase(n.hash);
  const PageIndex parent = n.parent;
  const bool held = n.held;
  n = {};
  if (parent != kNoPage) {
    nodes_[parent].blocked -= held ? 1 : 0;
    settle(parent);
  }
}

void ChainForest::unlink_from_siblings(const Node& n) {
  if (n.parent_hash.is_zero()) return;
  if (n.prev_sibling != kNoPage) {
    nodes_[n.prev_sibling].next_sibling = n.next_sibling;
  } else if (n.parent != kNoPage) {
    nodes_[n.parent].first_child = n.next_sibling;
  } else if (n.next_sibling != kNoPage) {
    orphans_[n.parent_hash] = n.next_sibling;
  } else {
    orphans_.erase(n.parent_hash);
  }
  if (n.next_sibling != kNoPage) nodes_[n.next_sibling].prev_sibling = n.prev_sibling;
}

void ChainForest::set_used(PageIndex page, bool used) {
  MC_ASSERT(has(page));
  nodes_[page].used = used;
  settle(page);
}

void ChainForest::set_rank(PageIndex page, uint64_t rank) {
  MC_ASSERT(has(page));
  nodes_[page].rank = rank;
  if (leaves_.contains(page)) leaves_.change(page, rank);
}

PageIndex ChainForest::first_leaf() const {
  MC_ASSERT(!leaves_.empty());
  return leaves_.front();
}

// Updates the leaves and the ancestors' counts after the use or the children of `page` changed.
void ChainForest::settle(PageIndex page) {
  while (page != kNoPage) {
    Node& n = nodes_[page];
    const bool held = n.used || n.blocked > 0;
    const bool wanted = !held && n.first_child == kNoPage;
    if (wanted && !leaves_.contains(page)) leaves_.push(page, n.rank);
    if (!wanted && leaves_.contains(page)) leaves_.erase(page);
    if (held == n.held) return;
    n.held = held;
    unheld_ += held ? -1 : 1;
    page = n.parent;
    if (page != kNoPage) nodes_[page].blocked += held ? 1 : -1;
  }
}

std::vector<PageIndex> ChainForest::subtree(const BlockHash& root) const {
  std::vector<PageIndex> out;
  const auto collect = [&](PageIndex top) {
    size_t next = out.size();
    out.push_back(top);
    for (; next < out.size(); ++next)
      for (PageIndex child = nodes_[out[next]].first_child; child != kNoPage; child = nodes_[child].next_sibling)
        out.push_back(child);
  };
  if (const PageIndex page = find(root); page != kNoPage) {
    collect(page);
  } else if (const auto it = orphans_.find(root); it != orphans_.end()) {
    for (PageIndex child = it->second; child != kNoPage; child = nodes_[child].next_sibling) collect(child);
  }
  return out;
}

std::vector<PageIndex> ChainForest::by_level() const {
  const auto by_hash = [this](PageIndex a, PageIndex b) { return nodes_[a].hash < nodes_[b].hash; };
  std::vector<PageIndex> level, next, out;
  for (PageIndex page = 0; page < nodes_.size(); ++page)
    if (nodes_[page].here && nodes_[page].parent == kNoPage) level.push_back(page);
  out.reserve(size());
  for (; !level.empty(); level.swap(next), next.clear()) {
    std::sort(level.begin(), level.end(), by_hash);
    out.insert(out.end(), level.begin(), level.end());
    for (const PageIndex page : level)
      for (PageIndex child = nodes_[page].first_child; child != kNoPage; child = nodes_[child].next_sibling)
        next.push_back(child);
  }
  MC_ASSERT_EQ(out.size(), size());
  return out;
}

void ChainForest::check_children(PageIndex page) const {
  const Node& n = nodes_[page];
  uint32_t blocked = 0;
  PageIndex previous = kNoPage;
  for (PageIndex child = n.first_child; child != kNoPage; child = nodes_[child].next_sibling) {
    MC_ASSERT_EQ(nodes_[child].parent, page);
    MC_ASSERT_EQ(nodes_[child].prev_sibling, previous);
    MC_ASSERT(nodes_[child].parent_hash == n.hash);
    blocked += nodes_[child].held ? 1 : 0;
    previous = child;
  }
  MC_ASSERT_EQ(n.blocked, blocked);
}

void ChainForest::check() const {
  leaves_.check();
  size_t here = 0, unheld = 0, with_parent = 0, as_child = 0;
  for (PageIndex page = 0; page < nodes_.size(); ++page) {
    const Node& n = nodes_[page];
    MC_ASSERT_EQ(leaves_.contains(page), n.here && !n.held && n.first_child == kNoPage);
    if (!n.here) {
      MC_ASSERT(n.first_child == kNoPage && n.parent == kNoPage && !n.held);
      continue;
    }
    MC_ASSERT_EQ(find(n.hash), page);
    MC_ASSERT_EQ(n.parent, n.parent_hash.is_zero() ? kNoPage : find(n.parent_hash));
    MC_ASSERT_EQ(n.held, n.used || n.blocked > 0);
    check_children(page);
    ++here;
    unheld += n.held ? 0 : 1;
    with_parent += n.parent_hash.is_zero() ? 0 : 1;
    for (PageIndex child = n.first_child; child != kNoPage; child = nodes_[child].next_sibling) ++as_child;
  }
  for (const auto& [hash, first] : orphans_) {
    MC_ASSERT_EQ(find(hash), kNoPage);
    MC_ASSERT(first != kNoPage);
    for (PageIndex child = first; child != kNoPage; child = nodes_[child].next_sibling) {
      MC_ASSERT(nodes_[child].parent_hash == hash);
      ++as_child;
    }
  }
  MC_ASSERT_EQ(with_parent, as_child);
  MC_ASSERT_EQ(index_.size(), here);
  MC_ASSERT_EQ(size_t{unheld_}, unheld);
}

}  // namespace mc::kv
