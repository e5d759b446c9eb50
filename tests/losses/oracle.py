"""Losses of the trade, written a second time with PyTorch and plain loops: what `onward.losses` is compared with."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

Tensor = torch.Tensor


# ------------------------------------------------------------------ focal, regions


def focal(x: Tensor, y: Tensor, gamma=2.0, alpha=None, ignore=None, axis=1) -> Tensor:
    """The mean over elements, one by one."""
    p = torch.softmax(x, axis).movedim(axis, -1).reshape(-1, x.shape[axis])
    terms = []
    for row, label in zip(p, y.reshape(-1).tolist(), strict=True):
        if label != ignore:
            terms.append(-(1 if alpha is None else alpha[label]) * (1 - row[label]) ** gamma * torch.log(row[label]))
    return torch.stack(terms).mean() if terms else x.sum() * 0


def sigmoid_focal(x: Tensor, y: Tensor, gamma=2.0, alpha=0.25) -> Tensor:
    """torchvision.ops.sigmoid_focal_loss, elementwise."""
    p = torch.sigmoid(x)
    entropy = F.binary_cross_entropy_with_logits(x, y, reduction="none")
    p_t = p * y + (1 - p) * (1 - y)
    loss = entropy * (1 - p_t) ** gamma
    return loss if alpha is None else (alpha * y + (1 - alpha) * (1 - y)) * loss


def region_sums(p: Tensor, t: Tensor, batch: bool, squared=False):
    """Return Σ pt, Σ p, Σ t for each sample and class."""
    axes = ([0] if batch else []) + list(range(2, p.ndim))
    if squared:
        return (p * t).sum(axes), (p * p).sum(axes), (t * t).sum(axes)
    return (p * t).sum(axes), p.sum(axes), t.sum(axes)


def dice(p: Tensor, t: Tensor, smooth=1.0, batch=False, squared=False) -> Tensor:
    both, left, right = region_sums(p, t, batch, squared)
    return (1 - (2 * both + smooth) / (left + right + smooth)).mean()


def tversky(p: Tensor, t: Tensor, alpha=0.5, beta=0.5, gamma=1.0, smooth=1.0, batch=False) -> Tensor:
    hit, left, right = region_sums(p, t, batch)
    return ((1 - (hit + smooth) / (hit + alpha * (left - hit) + beta * (right - hit) + smooth)) ** gamma).mean()


# ------------------------------------------------------------------ boxes


def box_likeness(a: Tensor, b: Tensor, kind: str, eps=1e-7) -> Tensor:
    """IoU, GIoU, DIoU, CIoU of corner boxes, as torchvision.ops and the authors' code compute them."""
    x1, y1, x2, y2 = a.unbind(-1)
    u1, v1, u2, v2 = b.unbind(-1)
    # relu, not clamp: boxes with a common edge share nothing, and torchvision's losses give that no slope either.
    inter = torch.relu(torch.minimum(x2, u2) - torch.maximum(x1, u1)) * torch.relu(
        torch.minimum(y2, v2) - torch.maximum(y1, v1)
    )
    union = (x2 - x1) * (y2 - y1) + (u2 - u1) * (v2 - v1) - inter
    iou = inter / (union + eps)
    if kind == "iou":
        return iou
    cw = torch.maximum(x2, u2) - torch.minimum(x1, u1)
    ch = torch.maximum(y2, v2) - torch.minimum(y1, v1)
    if kind == "giou":
        return iou - (cw * ch - union) / (cw * ch + eps)
    rho = ((x1 + x2 - u1 - u2) ** 2 + (y1 + y2 - v1 - v2) ** 2) / 4
    diou = iou - rho / (cw**2 + ch**2 + eps)
    if kind == "diou":
        return diou
    v = 4 / math.pi**2 * (torch.atan((u2 - u1) / (v2 - v1 + eps)) - torch.atan((x2 - x1) / (y2 - y1 + eps))) ** 2
    with torch.no_grad():
        alpha = v / (1 - iou + v + eps)
    return diou - alpha * v


def as_corners(b: Tensor) -> Tensor:
    return torch.cat([b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2], -1)


# ------------------------------------------------------------------ contrastive


def info_nce(a: Tensor, b: Tensor, temperature=0.07, symmetric=True) -> Tensor:
    scores = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / temperature
    own = torch.arange(len(a))
    loss = F.cross_entropy(scores, own)
    return (loss + F.cross_entropy(scores.T, own)) / 2 if symmetric else loss


def nt_xent(x: Tensor, y: Tensor, temperature=0.5) -> Tensor:
    u = F.normalize(x, dim=1)
    terms = []
    for i in range(len(x)):
        negatives = [u[i] @ u[k] / temperature for k in range(len(x)) if y[k] != y[i]]
        for j in range(len(x)):
            if i != j and y[i] == y[j]:
                s = u[i] @ u[j] / temperature
                terms.append(torch.logsumexp(torch.stack([s, *negatives]), 0) - s)
    return torch.stack(terms).mean() if terms else x.sum() * 0


def supervised_contrastive(x: Tensor, y: Tensor, temperature=0.1) -> Tensor:
    u = F.normalize(x, dim=1)
    rows = []
    for i in range(len(x)):
        s = {k: u[i] @ u[k] / temperature for k in range(len(x)) if k != i}
        partners = [k for k in s if y[k] == y[i]]
        if partners:
            everyone = torch.logsumexp(torch.stack(list(s.values())), 0)
            rows.append(torch.stack([everyone - s[k] for k in partners]).mean())
    return torch.stack(rows).mean() if rows else x.sum() * 0


def batch_triplet(x: Tensor, y: Tensor, margin=0.2, mining="hard") -> Tensor:
    d = {(i, j): (x[i] - x[j]).norm() for i in range(len(x)) for j in range(len(x)) if i != j}
    terms = []
    for i in range(len(x)):
        partners = [d[i, j] for j in range(len(x)) if j != i and y[j] == y[i]]
        others = [d[i, j] for j in range(len(x)) if y[j] != y[i]]
        if not partners or not others:
            continue
        if mining == "hard":
            terms.append(torch.relu(max(partners) - min(others) + margin))
        elif mining == "semi_hard":
            for near in partners:
                outside = [o for o in others if o > near]
                terms.append(torch.relu(near - (min(outside) if outside else max(others)) + margin))
        else:
            terms += [v for near in partners for o in others if (v := near - o + margin) > 0]
    return torch.stack(terms).mean() if terms else x.sum() * 0


# ------------------------------------------------------------------ detectors


def ssd(places, scores, classes, boxes, anchors, threshold=0.5, negatives=3, variances=(0.1, 0.2)) -> Tensor:
    """The MultiBox loss after the authors' code: one image and one object after the other."""
    corners = as_corners(anchors)
    total, matched = places.sum() * 0, 0
    for n in range(len(places)):
        objects = [(int(c), b) for c, b in zip(classes[n], boxes[n], strict=True) if c >= 0]
        label = [-1] * len(anchors)
        if objects:
            iou = torch.stack([box_likeness(corners, b.expand_as(corners), "iou") for _, b in objects], 1)
            for a in range(len(anchors)):
                best = int(iou[a].argmax())
                if iou[a, best] >= threshold and iou[a, best] > 0:
                    label[a] = best
            for j in range(len(objects)):
                label[int(iou[:, j].argmax())] = j
        logarithms = torch.log_softmax(scores[n], 1)
        rest = []
        positives = 0
        for a, j in enumerate(label):
            if j < 0:
                rest.append(-logarithms[a, 0])
                continue
            positives += 1
            number, box = objects[j]
            total = total - logarithms[a, number + 1]
            centre, size = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
            own, extent = anchors[a, :2], anchors[a, 2:]
            target = torch.cat([(centre - own) / extent / variances[0], torch.log(size / extent) / variances[1]])
            total = total + F.smooth_l1_loss(places[n, a], target, reduction="sum")
        rest.sort(key=lambda loss: loss.item(), reverse=True)
        for loss in rest[: int(negatives * positives)]:
            total = total + loss
        matched += positives
    return total / max(1, matched)


def grid(size: int, strides, per_cell=None):
    """Return (column, row, stride, grid, anchor) of each prediction."""
    found = []
    for g, stride in enumerate(strides):
        cells = math.ceil(size / stride)
        for a in range(1 if per_cell is None else per_cell[g]):
            found += [(x, y, stride, g, a) for y in range(cells) for x in range(cells)]
    return found


def yolo_boxes(raw: Tensor, cells) -> Tensor:
    boxes = []
    for i, (x, y, stride, _, _) in enumerate(cells):
        tx, ty, tw, th = raw[:, i].unbind(-1)
        boxes.append(torch.stack([(tx + x) * stride, (ty + y) * stride, tw.exp() * stride, th.exp() * stride], -1))
    return as_corners(torch.stack(boxes, 1))


def yolox(predictions, classes, boxes, size, strides, box_weight=5.0, topk=10) -> Tensor:
    """YOLOX with SimOTA, one image after the other; predictions [N, P, 5 + C] are raw logits."""
    cells = grid(size, strides)
    found = yolo_boxes(predictions[..., :4], cells)
    count = predictions.shape[2] - 5
    total, assigned = predictions.sum() * 0, 0
    for n in range(len(predictions)):
        objects = [(int(c), b) for c, b in zip(classes[n], boxes[n], strict=True) if c >= 0]
        owner: dict[int, int] = {}
        ious, costs = {}, {}
        with torch.no_grad():
            wants: dict[int, list[int]] = {}
            for j, (number, box) in enumerate(objects):
                middle = (box[:2] + box[2:]) / 2
                for p, (x, y, stride, _, _) in enumerate(cells):
                    if abs((x + 0.5) * stride - middle[0]) < 1.5 * stride and abs((y + 0.5) * stride - middle[1]) < (
                        1.5 * stride
                    ):
                        ious[p, j] = box_likeness(found[n, p], box, "iou")
                        joint = (predictions[n, p, 5:].sigmoid() * predictions[n, p, 4].sigmoid()).sqrt()
                        target = F.one_hot(torch.tensor(number), count).to(joint)
                        entropy = F.binary_cross_entropy(joint, target, reduction="sum")
                        costs[p, j] = entropy - 3 * torch.log(ious[p, j].clamp(min=1e-30))
                mine = [p for p, k in ious if k == j]
                best = sorted((ious[p, j] for p in mine), reverse=True)[:topk]
                k = max(1, int(sum(best)))
                for p in sorted(mine, key=lambda p: costs[p, j])[:k]:
                    wants.setdefault(p, []).append(j)
            for p, several in wants.items():
                every = [j for j in range(len(objects)) if (p, j) in costs]
                owner[p] = several[0] if len(several) == 1 else min(every, key=lambda j: costs[p, j])
        for p in range(len(cells)):
            there = torch.tensor(1.0 if p in owner else 0.0).to(predictions)
            total = total + F.binary_cross_entropy_with_logits(predictions[n, p, 4], there)
        for p, j in owner.items():
            number, box = objects[j]
            target = F.one_hot(torch.tensor(number), count) * ious[p, j]
            total = total + F.binary_cross_entropy_with_logits(predictions[n, p, 5:], target, reduction="sum")
            total = total + box_weight * (1 - box_likeness(found[n, p], box, "ciou"))
        assigned += len(owner)
    return total / max(1, assigned)


def yolov8(predictions, classes, boxes, size, strides, box_weight=7.5, class_weight=0.5, topk=10) -> Tensor:
    """YOLOv8 with the task-aligned assigner; predictions [N, P, 4 + C]: decoded centre boxes in pixels, logits."""
    cells = grid(size, strides)
    found = as_corners(predictions[..., :4])
    target = torch.zeros_like(predictions[..., 4:])
    pairs = []
    with torch.no_grad():
        for n in range(len(predictions)):
            objects = [(int(c), b) for c, b in zip(classes[n], boxes[n], strict=True) if c >= 0]
            wants: dict[int, list[int]] = {}
            ious, metric = {}, {}
            for j, (number, box) in enumerate(objects):
                mine = []
                for p, (x, y, stride, _, _) in enumerate(cells):
                    cx, cy = (x + 0.5) * stride, (y + 0.5) * stride
                    if box[0] < cx < box[2] and box[1] < cy < box[3]:
                        mine.append(p)
                        ious[p, j] = box_likeness(found[n, p], box, "iou")
                        metric[p, j] = predictions[n, p, 4 + number].sigmoid() ** 0.5 * ious[p, j] ** 6
                for p in sorted(mine, key=lambda p: -metric[p, j])[:topk]:
                    wants.setdefault(p, []).append(j)
            owner = {p: max(several, key=lambda j: ious[p, j]) for p, several in wants.items()}
            for j, (number, box) in enumerate(objects):
                own = [p for p, k in owner.items() if k == j]
                if own:
                    top, high = max(metric[p, j] for p in own), max(ious[p, j] for p in own)
                    for p in own:
                        target[n, p, number] = metric[p, j] * high / (top + 1e-30)
                        pairs.append((n, p, box, target[n, p, number].clone()))
    total = class_weight * F.binary_cross_entropy_with_logits(predictions[..., 4:], target, reduction="sum")
    for n, p, box, weight in pairs:
        total = total + box_weight * weight * (1 - box_likeness(found[n, p], box, "ciou"))
    return total / max(1.0, float(target.sum()))


def yolov3(predictions, classes, boxes, size, strides, anchors, ignore=0.5, box_weight=5.0) -> Tensor:
    """YOLOv3 with the CIoU of YOLOv4; predictions [N, P, 5 + C] are raw."""
    cells = grid(size, strides, [len(a) for a in anchors])
    index = {(g, a, x, y): i for i, (x, y, _, g, a) in enumerate(cells)}
    found = []
    for i, (x, y, stride, g, a) in enumerate(cells):
        tx, ty, tw, th = predictions[:, i, :4].unbind(-1)
        w, h = anchors[g][a]
        found.append(
            torch.stack([(tx.sigmoid() + x) * stride, (ty.sigmoid() + y) * stride, tw.exp() * w, th.exp() * h], -1)
        )
    found = as_corners(torch.stack(found, 1))
    shapes = [(g, a, w, h) for g, own in enumerate(anchors) for a, (w, h) in enumerate(own)]
    total, count = predictions.sum() * 0, 0
    for n in range(len(predictions)):
        objects = [(int(c), b) for c, b in zip(classes[n], boxes[n], strict=True) if c >= 0]
        assigned = set()
        for number, box in objects:
            width, height = float(box[2] - box[0]), float(box[3] - box[1])

            def likeness(shape, width=width, height=height):
                both = min(width, shape[2]) * min(height, shape[3])
                return both / (width * height + shape[2] * shape[3] - both)

            g, a, _, _ = max(shapes, key=likeness)
            x, y = (int((box[i] + box[i + 2]) / 2 / strides[g]) for i in (0, 1))
            p = index[g, a, x, y]
            assigned.add(p)
            kind = F.one_hot(torch.tensor(number), predictions.shape[2] - 5).to(predictions)
            total = total + F.binary_cross_entropy_with_logits(predictions[n, p, 5:], kind, reduction="sum")
            total = total + box_weight * (1 - box_likeness(found[n, p], box, "ciou"))
        count += len(objects)
        for p in range(len(cells)):
            close = max((box_likeness(found[n, p], b, "iou").item() for _, b in objects), default=0.0)
            if p in assigned or close <= ignore:
                there = torch.tensor(1.0 if p in assigned else 0.0).to(predictions)
                total = total + F.binary_cross_entropy_with_logits(predictions[n, p, 4], there)
    return total / max(1, count)
